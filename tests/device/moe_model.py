"""Random weights of a model's experts on a GPU, and the launches of a layer: for `moe.py`."""

from dataclasses import dataclass, fields

import torch

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels.add_norm.triton_rows import add_norm
from firmtoken.runtime.kernels.combine.triton_rows import combine
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertSlots, make_arena
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.moe_down.triton_nvfp4 import SharedDown, moe_down, moe_down_combine
from firmtoken.runtime.kernels.moe_gate_up.triton_nvfp4 import moe_gate_up
from firmtoken.runtime.kernels.route.triton_norm_top_k import add_norm_route
from firmtoken.runtime.kernels.route.triton_top_k import route
from firmtoken.runtime.kernels.route_sigmoid.triton_top_k import route_sigmoid
from firmtoken.runtime.kernels.shared_expert.triton_nvfp4 import shared_expert

EPS = 1e-6
GPU = "cuda"
Constants = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    name: str
    hidden: int
    width: int
    shared: int
    layers: int
    """Of which there are weights here: those of MiniMax's 62 would take longer to draw than to use."""
    gate_up: Constants
    down: Constants
    down_combine: Constants
    norm_route: Constants
    experts: int = 256
    k: int = 8


QWEN = Geometry(
    name="qwen3.6",
    hidden=2048,
    width=512,
    shared=512,
    layers=40,
    gate_up={"warps": 1, "lanes": 32, "outputs": 2},
    down={"warps": 1, "lanes": 8, "outputs": 4},
    down_combine={"warps": 1, "lanes": 32, "outputs": 4},
    norm_route={"experts_at_once": 2},
)
MINIMAX = Geometry(
    name="minimax",
    hidden=3072,
    width=1536,
    shared=0,
    layers=8,
    gate_up={"warps": 1, "lanes": 32, "outputs": 2},
    down={"warps": 1, "lanes": 16, "outputs": 4},
    down_combine={"warps": 1, "lanes": 32, "outputs": 1},
    norm_route={"experts_at_once": 1},
)
ROUTE = {"experts_at_once": 2}
ADD_NORM = {"warps": 8}
COMBINE = {"columns": 512, "warps": 2}


class Model:
    """Random weights of all layers of a geometry, and the values of one launch of `num_rows` rows."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geo = geometry
        layout = slot_parts("nvfp4", geo.hidden, geo.width)
        num_slots = geo.layers * geo.experts
        slots = torch.empty(num_slots, slot_bytes(layout), dtype=torch.uint8, device=GPU)
        slots.view(-1).view(torch.int64).random_()
        self.arena = make_arena(slots, layout)
        for part in ("gate", "up", "down"):
            self.arena.parts[f"{part}_scale"].view(torch.uint8).random_(0x20, 0x50)
        # Each half has its own global scale: a kernel that uses one for both is far off.
        scales = torch.rand(num_slots, 3, device=GPU) * 0.01 + 0.002
        self.arena.parts["globals"].copy_(scales)
        self.routers = 0.02 * torch.randn(geo.layers, geo.experts, geo.hidden, device=GPU)
        self.routers = self.routers.bfloat16()
        self.bias = torch.rand(geo.experts, device=GPU)
        self.norms = (torch.rand(geo.layers, geo.hidden, device=GPU) + 0.5).bfloat16()
        self.shared_gate_up = [
            self._matrix(2 * geo.shared, geo.hidden, 2) for _ in range(geo.layers)
        ]
        self.shared_down = [self._matrix(geo.hidden, geo.shared, 1) for _ in range(geo.layers)]
        self.shared_gate = 0.02 * torch.randn(geo.layers, 1, geo.hidden, device=GPU).bfloat16()

    def _matrix(self, num_outputs: int, width: int, parts: int) -> PackedMatrix:
        shape = (num_outputs, width // 2)
        scale = torch.randint(0x20, 0x50, (num_outputs, width // 16), dtype=torch.uint8, device=GPU)
        return PackedMatrix(
            packed=torch.randint(0, 256, shape, dtype=torch.uint8, device=GPU),
            scale=scale,
            globals=torch.rand(parts, device=GPU) * 0.01 + 0.002,
            starts=tuple(num_outputs // parts * part for part in range(1, parts)),
        )

    def experts(self, layer: int) -> ExpertSlots:
        count = self.geometry.experts
        return ExpertSlots(first=layer * count, count=count, arena=self.arena)

    def sizes(self) -> dict[str, int]:
        geo = self.geometry
        return {
            "hidden_size": geo.hidden,
            "expert_width": geo.width,
            "num_experts_per_token": geo.k,
        }


def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    value = torch.nan if dtype.is_floating_point else 12_345
    return torch.full(shape, value, dtype=dtype, device=GPU)


class Values:
    """What the launches of a layer hand on, in fixed places."""

    def __init__(self, model: Model, num_rows: int, real_rows: int) -> None:
        geo = model.geometry
        self.num_rows = num_rows
        self.hid = torch.randn(num_rows, geo.hidden, device=GPU).bfloat16()
        self.y = torch.randn(num_rows, geo.hidden, device=GPU).bfloat16()
        self.h = torch.randn(num_rows, geo.hidden, device=GPU).bfloat16()
        self.ids = poisoned(num_rows, geo.k, dtype=torch.int32)
        self.wts = poisoned(num_rows, geo.k, dtype=torch.float32)
        self.route_workspace = poisoned(num_rows * (geo.experts + 1), dtype=torch.float32)
        self.arrived = self.route_workspace.view(torch.int32)[:num_rows].zero_()
        self.logits = self.route_workspace[num_rows:].view(num_rows, geo.experts)
        self.a = poisoned(num_rows * geo.k, geo.width)
        self.rows = poisoned(num_rows * geo.k, geo.hidden)
        self.shared_a = poisoned(num_rows, max(geo.shared, 16))
        self.share = poisoned(num_rows, dtype=torch.float32)
        self.shared_workspace = poisoned(num_rows * (max(geo.shared, 16) + 2)).view(torch.uint8)
        self.s = poisoned(num_rows, geo.hidden)
        nothing = torch.zeros(1, dtype=torch.int32, device=GPU)
        given = {field.name: nothing for field in fields(DeviceRows)}
        count = torch.tensor([real_rows], dtype=torch.int32, device=GPU)
        self.batch = DeviceRows(**(given | {"num_rows": count}))

    def draw_routes(self, geo: Geometry) -> None:
        """Random experts for each row, and weights that sum to 1."""
        score = torch.rand(self.num_rows, geo.experts, device=GPU)
        self.ids.copy_(score.topk(geo.k).indices)
        self.wts.copy_(torch.rand(self.num_rows, geo.k, device=GPU).softmax(-1))


class Launches:
    """Each op of a layer, with constants."""

    def __init__(self, model: Model, values: Values, *, early: bool = False) -> None:
        self.model = model
        self.values = values
        self.early = early

    def add_norm(self, layer: int, constants: Constants = ADD_NORM) -> None:
        v = self.values
        norm = self.model.norms[layer]
        add_norm(
            v.batch, hid=v.hid, y=v.y, h=v.h, norm=norm, eps=EPS, early=self.early, **constants
        )

    def route(self, layer: int, constants: Constants = ROUTE) -> None:
        v, geo = self.values, self.model.geometry
        given = {"h": v.h, "router": self.model.routers[layer], "ids": v.ids, "wts": v.wts}
        given |= {"workspace": v.route_workspace, "early": self.early}
        if geo.shared:
            route(v.batch, **given, num_experts_per_token=geo.k, **constants)
        else:
            bias = self.model.bias
            route_sigmoid(v.batch, **given, bias=bias, num_experts_per_token=geo.k, **constants)

    def add_norm_route(self, layer: int) -> None:
        v, model = self.values, self.model
        add_norm_route(
            v.batch,
            hid=v.hid,
            y=v.y,
            norm=model.norms[layer],
            h=v.h,
            router=model.routers[layer],
            ids=v.ids,
            wts=v.wts,
            logits=v.logits,
            arrived=v.arrived,
            bias=None if model.geometry.shared else model.bias,
            eps=EPS,
            num_experts_per_token=model.geometry.k,
            early=self.early,
            **model.geometry.norm_route,
        )

    def gate_up(self, layer: int, constants: Constants, *, folded: bool) -> None:
        v, model = self.values, self.model
        shared = {
            "shared_gate_up": model.shared_gate_up[layer],
            "shared_gate": model.shared_gate[layer],
            "shared_a": v.shared_a,
            "share": v.share,
        }
        moe_gate_up(
            v.batch,
            x=v.h,
            experts=model.experts(layer),
            a=v.a,
            ids=v.ids,
            **(shared if folded else {}),
            **model.sizes(),
            early=self.early,
            **constants,
        )

    def shared_down(self, layer: int) -> SharedDown:
        v = self.values
        return SharedDown(a=v.shared_a, share=v.share, down=self.model.shared_down[layer])

    def down(self, layer: int, constants: Constants, *, folded: bool) -> None:
        v, model = self.values, self.model
        shared = {
            "shared_down": model.shared_down[layer],
            "shared_a": v.shared_a,
            "share": v.share,
            "s": v.s,
        }
        moe_down(
            v.batch,
            a=v.a,
            experts=model.experts(layer),
            rows=v.rows,
            ids=v.ids,
            **(shared if folded else {}),
            **model.sizes(),
            early=self.early,
            **constants,
        )

    def down_combine(self, layer: int, constants: Constants, *, folded: bool) -> None:
        v, model = self.values, self.model
        moe_down_combine(
            v.batch,
            a=v.a,
            experts=model.experts(layer),
            wts=v.wts,
            hid=v.hid,
            ids=v.ids,
            shared=self.shared_down(layer) if folded else None,
            **model.sizes(),
            early=self.early,
            **constants,
        )

    def shared(self, layer: int) -> None:
        v, model = self.values, self.model
        shared_expert(
            v.batch,
            h=v.h,
            gate_up=model.shared_gate_up[layer],
            down=model.shared_down[layer],
            gate=model.shared_gate[layer],
            s=v.s,
            workspace=v.shared_workspace,
            gate_up_warps=1,
            gate_up_lanes=32,
            gate_up_outputs=1,
            down_warps=1,
            down_lanes=8,
            down_outputs=4,
            early=self.early,
        )

    def combine(self, layer: int, *, summed: bool, constants: Constants = COMBINE) -> None:
        v = self.values
        s = v.s if summed else None
        combine(v.batch, rows=v.rows, wts=v.wts, hid=v.hid, s=s, early=self.early, **constants)
