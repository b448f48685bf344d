"""Random weights and launches of the products of many rows on a GPU: for `prefill.py`."""

from dataclasses import dataclass, replace

import torch
from moe_model import GPU, MINIMAX, QWEN, Constants, Geometry, Model, poisoned

from firmtoken.compiler.workspaces import PAIR_CHUNK, SMALLEST_TILE, most_pair_tiles, pair_bins
from firmtoken.runtime.kernels.combine.triton_blocks import combine
from firmtoken.runtime.kernels.launch_operand import in_operand_order
from firmtoken.runtime.kernels.launch_pair_tiles import find_tiles
from firmtoken.runtime.kernels.linear import triton_fp8_tiles
from firmtoken.runtime.kernels.matrices import CodedMatrix
from firmtoken.runtime.kernels.moe_down.triton_grouped_nvfp4 import moe_down
from firmtoken.runtime.kernels.moe_gate_up.triton_grouped_nvfp4 import moe_gate_up
from firmtoken.runtime.kernels.shared_expert.triton_nvfp4_tiles import shared_expert
from firmtoken.runtime.kernels.tile_shapes import PAIR_TILES, ROW_TILES, TILE_SHAPES, TileShapes

LAYERS = 6
"""Of Qwen 2.7 GB: beyond 2^31 bytes and far beyond L2."""
GEOMETRIES = (replace(QWEN, layers=LAYERS), replace(MINIMAX, layers=2))
BLOCKS = 4
"""Of the columns of down, as plans cut them."""


def cut(large: tuple[int, int, int], small: tuple[int, int, int]) -> Constants:
    """Constants of a card: outputs, warps, stages."""
    sizes = dict(zip(("outputs", "warps", "stages"), large, strict=True))
    fewer = dict(zip(("outputs", "warps", "stages"), small, strict=True))
    return {
        **{f"large_{name}": size for name, size in sizes.items()},
        **{f"small_{name}": size for name, size in fewer.items()},
    }


CARD = {**dict(TILE_SHAPES), "large_stages": 4}
OF_PAIRS = {name: number for name, number in PAIR_TILES if name not in CARD}
OF_ROWS = {name: number for name, number in ROW_TILES if name not in CARD}
"""From how much on work is cut otherwise: no cut changes these."""
CUTS = {"card": CARD, "B": cut((256, 8, 3), (128, 4, 4))}
FP8_CUTS = {
    "card": {**CARD, "large_step": 64, "small_step": 128},
    "B": {**cut((64, 4, 3), (64, 4, 4)), "large_step": 128, "small_step": 128},
    "C": {**cut((128, 4, 3), (64, 4, 5)), "large_step": 64, "small_step": 64},
}
COMBINE = {"rows_at_once": 4, "columns": 512, "warps": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    name: str
    outputs: int
    width: int
    starts: tuple[int, ...]
    tail: int = 0


LINEARS = (
    Linear(name="in_proj", outputs=12_288, width=2048, starts=(8192,), tail=64),
    Linear(name="qkv", outputs=9216, width=2048, starts=(8192, 8704)),
    Linear(name="out", outputs=2048, width=4096, starts=()),
)


def coded(linear: Linear) -> CodedMatrix:
    codes = torch.randint(0, 254, (linear.outputs, linear.width), dtype=torch.int32, device=GPU)
    tail = torch.randn(linear.tail, linear.width, device=GPU).bfloat16()
    return CodedMatrix(
        codes=(codes + (codes >= 127)).to(torch.uint8).view(torch.float8_e4m3fn),
        scales=torch.rand(len(linear.starts) + 1, device=GPU) * 1e-3 + 1e-4,
        starts=linear.starts,
        tail=tail if linear.tail else None,
    )


class Prompt:
    """What the launches of a layer hand on, for T rows of which the last `padded` are padding."""

    def __init__(self, model: Model, num_rows: int, padded: int = 0) -> None:
        geo = model.geometry
        self.model, self.num_rows, self.padded = model, num_rows, padded
        self.h = torch.randn(num_rows, geo.hidden, device=GPU).bfloat16()
        self.hid = torch.randn(num_rows, geo.hidden, device=GPU).bfloat16()
        self.s = poisoned(num_rows, geo.hidden)
        self.a = poisoned(num_rows * geo.k, geo.width)
        self.rows = poisoned(num_rows * geo.k, geo.hidden // BLOCKS)
        self.ids = torch.rand(num_rows, geo.experts, device=GPU).topk(geo.k).indices.int()
        self.wts = torch.rand(num_rows, geo.k, device=GPU).softmax(-1)
        if padded:
            self.ids[-padded:] = -1
            self.wts[-padded:] = 0
        pairs = num_rows * geo.k
        tiles = most_pair_tiles(pairs, geo.experts, SMALLEST_TILE)
        counts = 2 * -(-pairs // PAIR_CHUNK) * pair_bins(geo.experts)
        size = num_rows * geo.hidden * 2 + (pairs + 3 * tiles + 1 + counts) * 4
        self.workspace = torch.full((size,), 0x7F, dtype=torch.uint8, device=GPU)
        size = num_rows * ((geo.hidden + geo.shared) * 2 + 4)
        self.between = torch.full((size,), 0x7F, dtype=torch.uint8, device=GPU)

    def tiles(self, layer: int) -> None:
        geo = self.model.geometry
        cut = TileShapes(**CARD, **OF_PAIRS)
        find_tiles(self.ids, None, layer * geo.experts, geo.experts, self.workspace, cut)

    def order(self, layer: int) -> None:
        in_operand_order(self.h, self.workspace, quads=0)

    def gate_up(
        self, layer: int, constants: Constants, by_expert: torch.Tensor | None = None
    ) -> None:
        moe_gate_up(
            None,
            x=self.h,
            experts=self.model.experts(layer),
            a=self.a,
            ids=self.ids,
            map=by_expert,
            workspace=self.workspace,
            num_experts=self.model.geometry.experts,
            **self.model.sizes(),
            **OF_PAIRS,
            **constants,
        )

    def down(
        self,
        layer: int,
        constants: Constants,
        block: int = 0,
        by_expert: torch.Tensor | None = None,
    ) -> None:
        moe_down(
            None,
            a=self.a,
            experts=self.model.experts(layer),
            rows=self.rows,
            ids=self.ids,
            map=by_expert,
            block=block,
            workspace=self.workspace,
            num_experts=self.model.geometry.experts,
            **self.model.sizes(),
            **OF_PAIRS,
            **constants,
        )

    def shared(self, layer: int, constants: Constants) -> None:
        shared_expert(
            None,
            h=self.h,
            gate_up=self.model.shared_gate_up[layer],
            down=self.model.shared_down[layer],
            gate=self.model.shared_gate[layer],
            s=self.s,
            workspace=self.between,
            **OF_ROWS,
            **constants,
        )

    def combine(self, block: int, *, shared: bool, constants: Constants = COMBINE) -> None:
        s = self.s if shared else None
        combine(None, rows=self.rows, wts=self.wts, hid=self.hid, s=s, block=block, **constants)

    def experts_half(self, layer: int, constants: Constants) -> None:
        """What a plan does between the router and the next layer."""
        shared = self.model.geometry.shared > 0
        if shared:
            self.shared(layer, constants)
        self.gate_up(layer, constants)
        for block in range(BLOCKS):
            self.down(layer, constants, block)
            self.combine(block, shared=shared)


def multiply(w: CodedMatrix, x: torch.Tensor, y: torch.Tensor, constants: Constants) -> None:
    triton_fp8_tiles.linear(None, x=x, w=w, y=y, fp8_units=True, **OF_ROWS, **constants)


def only(geometry: Geometry) -> Model:
    """One layer, for compiling."""
    return Model(replace(geometry, layers=1))
