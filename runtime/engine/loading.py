"""From a plan and a checkpoint to an interpreter with every weight in its place."""

import hashlib
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.prescribed_routes import ROUTES
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.runtime.weights.load import Loaded, load
from firmtoken.runtime.weights.planned_model import ROUTER, SEED, is_synthetic, source_folder
from firmtoken.runtime.weights.preflight import Inventory, preflight
from firmtoken.runtime.weights.reading import Progress, large_pages
from firmtoken.runtime.weights.synthetic_routes import ROUTERS, route_table
from firmtoken.runtime.weights.synthetic_source import synthetic_inventory

RESTART_COPY = "restart_copy"
ROUTE_THREADS = 8
"""Layers at a time, while tables of prescribed experts are drawn."""
EXPERT_SEGMENT = {"offload": "bank", "resident": RESTART_COPY}
"""Where experts outlive the engine, by placement."""


class NoFolder(HintedFault):
    """The plan's weights are not in a folder of this machine."""


def checkpoint_folder(plan: Plan) -> Path:
    """Where the checkpoint's files are; raises `NoFolder`."""
    folder = source_folder(plan)
    if folder is None:
        raise NoFolder(
            f"the checkpoint of `{plan.model.name}` is not in a folder",
            "fetch the checkpoint and set `model.source.path`",
        )
    return folder


def inventory_of(plan: Plan) -> Inventory:
    """All that the plan needs, in its checkpoint or made for it; raises `NoFolder` and `LoadError`."""
    if is_synthetic(plan):
        return synthetic_inventory(plan)
    return preflight(plan, checkpoint_folder(plan))


class PlanPlaces:
    """Where the loader puts what it reads: the plan's places."""

    def __init__(self, plan: Plan, views: Views, copies: "SlotCopies | None") -> None:
        self._plan = plan
        self._views = views
        self._copies = copies

    def sections(self, weight: Weight, ordinal: int) -> dict[str, torch.Tensor]:
        """The tensors of a weight row."""
        return self._views.sections(weight, ordinal)

    def experts(self, layer: int) -> torch.Tensor:
        """uint8 [E, slot_bytes]: where they outlive the engine, else their slots."""
        if self._plan.experts.placement == "offload":
            return self._views.tensor(Value("bank", (layer,)))
        if self._copies is not None:
            return self._views.tensor(Value(RESTART_COPY, (layer,)))
        return resident_slots(self._plan, self._views, layer)

    def filled(self, layer: int) -> None:
        """They are brought to their slots while others are read."""
        if self._copies is not None:
            self._copies.begin(layer)

    def buffer(self, size: int) -> torch.Tensor:
        """uint8 [size]"""
        return large_pages(size)


class SlotCopies:
    """From the restart copy to resident slots, layer by layer, by a thread of its own: a context, so that it ends."""

    def __init__(self, plan: Plan, views: Views) -> None:
        self._plan = plan
        self._views = views
        self._pool = ThreadPoolExecutor(1)
        self._begun: list[Future[torch.Tensor]] = []

    def __enter__(self) -> "SlotCopies":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, layer: int) -> None:
        """From now on its bytes must stay as they are."""
        copy = self._views.tensor(Value(RESTART_COPY, (layer,)))
        slots = resident_slots(self._plan, self._views, layer)
        self._begun.append(self._pool.submit(slots.copy_, copy))

    def finish(self, progress: Progress) -> None:
        """Returns when all that were begun are there; raises what one of them did."""
        total = self._plan.experts.per_layer * self._plan.experts.slot_bytes * len(self._begun)
        for number, copy in enumerate(self._begun, start=1):
            copy.result()
            progress("expert slots", total * number // len(self._begun), total)


def load_weights(
    plan: Plan,
    interpreter: Interpreter,
    inventory: Inventory,
    progress: Progress,
    segments: Collection[str] = (),
) -> Loaded:
    """Reads the checkpoint; every expert slot that decode may hit is filled when this returns.

    Experts that an engine before this one has left in a segment are not read again (D11).
    """
    views, position = interpreter.views, interpreter.position
    kept = EXPERT_SEGMENT[plan.experts.placement]
    digest = content_digest(plan, inventory) if kept in segments else ""
    found = bool(digest) and position.filled().get(kept) == digest
    if not found and kept in segments:
        position.fill(kept, "")  # whoever comes next must not trust what is half written
    with SlotCopies(plan, views) as copies:
        has_copy = kept == RESTART_COPY and kept in segments
        places = PlanPlaces(plan, views, copies if has_copy else None)
        if found:
            progress("experts of the engine before", 0, 0)
            for layer in range(len(plan.model.layer_kinds)):
                places.filled(layer)
        loaded = load(plan, inventory, places, progress, keep_experts=found)
        if not found and kept in segments:
            position.fill(kept, digest)
        progress("expert slots", 0, 0)
        copies.finish(progress)
    fill_slots(plan, views)
    if ROUTER in plan.model.source:
        progress("prescribed routes", 0, 0)
        fill_routes(plan, views)
    return loaded


def content_digest(plan: Plan, inventory: Inventory) -> str:
    """What a segment of experts holds: these files, as they are now, in this plan's layout."""
    digest = hashlib.sha256(plan.fingerprint.encode())
    checkpoint = inventory.checkpoint
    if checkpoint.maker is not None:
        return digest.hexdigest()  # what is made follows from the plan alone
    for name in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        state = (checkpoint.folder / name).stat()
        digest.update(f"{checkpoint.folder / name}:{state.st_size}:{state.st_mtime_ns}".encode())
    return digest.hexdigest()


def fill_routes(plan: Plan, views: Views) -> None:
    """The table of each layer."""
    source, experts = plan.model.source, plan.experts
    table = partial(
        route_table,
        ROUTERS[source[ROUTER]],
        seed=int(source[SEED]),
        num_experts=experts.per_layer,
        chosen=int(plan.model.geometry["num_experts_per_token"]),
    )
    with ThreadPoolExecutor(ROUTE_THREADS) as pool:
        layers = range(len(plan.model.layer_kinds))
        for layer, found in enumerate(pool.map(lambda layer: table(layer=layer), layers)):
            rows = views.weight(ROUTES, layer)
            assert isinstance(rows, torch.Tensor)
            rows.copy_(torch.from_numpy(found))


def resident_slots(plan: Plan, views: Views, layer: int) -> torch.Tensor:
    """uint8 [E, slot_bytes] of the device, where all experts of a layer are."""
    first = sum(plan.experts.slots_per_layer[:layer])
    return views.experts.slots[first : first + plan.experts.per_layer]


def fill_slots(plan: Plan, views: Views) -> None:
    """Each layer's range gets its first experts, and the table says so; resident experts are there already."""
    if plan.experts.placement == "resident":
        return
    for layer, count in enumerate(plan.experts.slots_per_layer):
        table = views.tensor(Value("table", (layer,)))
        cache = views.slots(Value("cache", (layer,)))
        found = min(count, plan.experts.per_layer)
        cache.arena.slots[cache.first : cache.first + found] = views.tensor(
            Value("bank", (layer,))
        )[:found]
        table.fill_(-1)
        table[:found] = torch.arange(cache.first, cache.first + found, dtype=table.dtype)
