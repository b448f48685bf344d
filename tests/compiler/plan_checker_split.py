"""Contexts against slots: each row of a frontier as a ledger of its own, and which had to be chosen (D2, D8, D16)."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import log

from tests.compiler.plan_checker_model import ELEMENT, PLACE, Json, Model, folds_shared, up
from tests.compiler.plan_checker_speed import Speed

PREFER = {"speed": (0.05, 32_768), "balanced": (0.15, 65_536), "context": (0.5, 65_536)}
LAYOUTS = {"none": "resident", "whole": "offload", "waves": "waves"}
ROW_NUMBERS = (
    "pool",
    "slots",
    "slots_per_layer",
    "staging_slots",
    "resident_fraction",
    "hit_rate",
    "decode_tokens_per_s",
    "decode_tokens_per_s_full",
    "prefill_tokens_per_s",
    "ttft_s",
    "turn_s",
    "free_bytes",
)


def deal(slots: int, layers: int) -> list[int]:
    """Alike, what is left to the ends first (D8)."""
    each, left = divmod(slots, layers)
    order = sorted(range(layers), key=lambda layer: (min(layer, layers - 1 - layer), layer))
    favoured = set(order[:left])
    return [each + (layer in favoured) for layer in range(layers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A context with its ledger's numbers."""

    context: int
    pool: int
    layout: str
    slots: int
    staging: int
    span: int
    free: int

    @property
    def placement(self) -> str:
        return "resident" if self.layout == "resident" else "offload"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Weighs contexts of one plan."""

    plan: Json
    asked: Json
    model: Model
    speed: Speed
    """Of the plan itself."""
    host_lines: dict[str, int]
    """Due bytes of `process` and `pinned_io`."""
    other: dict[str, int] = field(default_factory=dict)
    """Fixed bytes of the layouts that were not chosen."""

    @property
    def requests(self) -> int:
        return int(self.asked["serving"]["requests"])

    @property
    def budget(self) -> int:
        return self.speed.machine.capacity - self.speed.machine.reserve

    @property
    def most(self) -> int:
        """The longest context worth a thought."""
        pool, own = self.asked["serving"]["pool"], self.asked["model"]["geometry"]
        longest = int(own["max_position_embeddings"])
        return longest if pool == "auto" else min(pool, longest)

    @property
    def page_bytes(self) -> int:
        cache = self.plan["kv_cache"]
        return int(cache["page_size"] * self.model.kv_elements * ELEMENT[cache["dtype"]])

    def pages(self, pool: int) -> int:
        return -(-pool // int(self.plan["kv_cache"]["page_size"])) + self.requests

    def kv(self, pool: int) -> int:
        return up(self.pages(pool) * self.page_bytes)

    def parked(self, span: int) -> int:
        chunk = self.plan["schedule"]["moe_chunk"]
        each = up(chunk * self.model.hidden * ELEMENT[self.model.activation]) // chunk
        return up(each * up(span, chunk))

    def overflow(self) -> int:
        return min(self.requests * self.model.routed, self.model.experts)

    def misses(self, slots: int) -> int:
        """Of the layer with the fewest slots; a range of staging slots is never empty."""
        return max(1, self.model.experts - slots // self.model.layers)

    def waves(self, layout: str, slots: int) -> int:
        """The fewest even number with a ring of 128 slots at most (D8)."""
        if layout == "offload":
            return 1
        numbers = range(2, self.model.experts + 2, 2)
        return next(waves for waves in numbers if 2 * -(-self.misses(slots) // waves) <= 128)

    def staging(self, layout: str, slots: int) -> int:
        """Both halves, of a layer's misses or of a wave of them (D8)."""
        return 2 * -(-self.misses(slots) // self.waves(layout, slots))

    @property
    def layout(self) -> str:
        return LAYOUTS[self.plan["experts"]["ring"]]

    @property
    def may_wave(self) -> bool:
        """A span in waves is one chunk; halves of whole layers that never take more than 64 slots need none."""
        span = self.asked["schedule"]["prefill_span"]
        one_chunk = span == "auto" or span <= self.plan["schedule"]["moe_chunk"]
        return one_chunk and 2 * (self.model.experts - 1) > 64

    @cached_property
    def fixed(self) -> dict[str, int]:
        """Device bytes that no context changes, by layout, as far as they are known."""
        moving = ("kv_pages", "parked_hidden")
        own = sum(
            row["bytes"]
            for row in self.plan["memory"]["device"]["lines"]
            if row["name"] not in moving and not row["name"].startswith("experts.")
        )
        return {**self.other, self.layout: own}

    def variants(self) -> Iterator["Bench"]:
        """What the first row of another layout says of its fixed bytes. They are not in the plan, but one number must
        explain all of its rows. The span of a row is not told: N*, unless that much cannot be parked."""
        possible: dict[str, list[int]] = {}
        for row in self.plan["frontier"]:
            layout, slots = self._layout_of(row), row["slots"]
            if layout == self.layout or layout in possible:
                continue
            rest = self.budget - row["free_bytes"] - self.kv(row["pool"])
            if layout == "resident":
                possible[layout] = [rest - slots * self.speed.slot_bytes]
                continue
            rest -= (slots + row["staging_slots"] + self.overflow()) * self.speed.slot_bytes
            chunk, asked = self.plan["schedule"]["moe_chunk"], self.asked["schedule"]
            hiding = max(chunk, up(self.at(layout, slots, 1).hiding(row["context"]), chunk))
            spans = range(hiding if layout == "offload" else chunk, 0, -chunk)
            if asked["prefill_span"] != "auto":
                spans = range(asked["prefill_span"], asked["prefill_span"] + 1)
            possible[layout] = [rest - self.parked(span) for span in spans]
        for chosen in product(*possible.values()):
            yield replace(self, other=dict(zip(possible, chosen, strict=True)))

    def _layout_of(self, row: Json) -> str:
        if not row["staging_slots"]:
            return "resident"
        whole = row["staging_slots"] == self.staging("offload", row["slots"])
        return "offload" if whole else "waves"

    @cached_property
    def placements(self) -> tuple[str, ...]:
        experts = self.asked["experts"]
        if experts["placement"] != "auto":
            return (experts["placement"],)
        if experts["slots"] == "auto":
            return ("resident", "offload")
        return ("resident" if experts["slots"] == self.model.total else "offload",)

    def host_has_room(self, placement: str) -> bool:
        bank = up(self.model.total * self.speed.slot_bytes) if placement != "resident" else 0
        pinned = bank + self.host_lines["pinned_io"]
        machine = self.speed.machine
        return pinned <= machine.pinnable and pinned + self.host_lines["process"] <= machine.host

    def at(self, layout: str, slots: int, span: int) -> Speed:
        """The speed of other slots; a decode step that admits, fetches and has the shared expert apart takes more."""
        offloaded = layout != "resident"
        each = 2 + folds_shared(self.asked)
        more = each * self.model.layers * (offloaded - self.speed.offloaded)
        return replace(
            self.speed,
            offloaded=offloaded,
            slots=slots,
            span=span,
            launches=self.speed.launches + more,
            waves=self.waves(layout, slots) if offloaded else 0,
        )

    def fit(self, context: int, placement: str) -> Fit | None:
        """A context under one placement, if it fits and enough is known of that placement."""
        if placement == "resident":
            return self._fit_layout(context, "resident")
        whole = self._fit_layout(context, "offload")
        exact = self.asked["experts"]["slots"] != "auto"
        small = whole is not None and (exact or whole.staging <= max(64, 0.04 * whole.slots))
        if small or not self.may_wave:
            return whole
        waves = self._fit_layout(context, "waves")
        if whole is None or waves is None:
            return whole or waves
        speed = self.at("waves", waves.slots, waves.span)
        hides = speed.compute_s(waves.span, 0) >= speed.stream_s / 2
        return waves if hides or whole.span <= waves.span else whole

    def _fit_layout(self, context: int, layout: str) -> Fit | None:
        if layout not in self.fixed or not self.host_has_room(layout):
            return None
        pool = self.asked["serving"]["pool"]
        pool = context if pool == "auto" else pool
        chunk, asked = self.plan["schedule"]["moe_chunk"], self.asked["schedule"]["prefill_span"]
        span = chunk if asked == "auto" else asked
        left = self.budget - self.fixed[layout] - self.kv(pool)
        if layout == "resident":
            slots, free = self.model.total, left - self.model.total * self.speed.slot_bytes
            return self._fit(context, pool, layout, slots, 0, span, free)
        found = None
        while True:  # N* grows as parked states push experts out (D7): the least span that hides its own stream
            split = self._split(left - self.parked(span), layout)
            if split is None:
                return found
            free = left - self.parked(span) - sum(split) * self.speed.slot_bytes
            longer = self._fit(context, pool, layout, split[0], split[1], span, free)
            found = longer or found
            hiding = up(self.at(layout, split[0], span).hiding(context), chunk)
            if longer is None or asked != "auto" or hiding <= span or layout == "waves":
                return found
            span = hiding

    def _fit(
        self,
        context: int,
        pool: int,
        layout: str,
        slots: int,
        staging: int,
        span: int,
        free: int,
    ) -> Fit | None:
        if free < 0:
            return None
        return Fit(
            context=context,
            pool=pool,
            layout=layout,
            slots=slots,
            staging=staging,
            span=span,
            free=free,
        )

    def _split(self, left: int, layout: str) -> tuple[int, int, int] | None:
        """Cache, staging, overflow: exactly what was asked, else the most that fits, one for each layer at least."""
        asked, overflow = self.asked["experts"]["slots"], self.overflow()
        if asked != "auto":
            return asked, self.staging(layout, asked), overflow
        room = left // self.speed.slot_bytes - overflow
        layers, total = self.model.layers, self.model.total
        for each in range(self.model.experts, 0, -1):
            spare = room - self.staging(layout, layers * each)
            slots = min(spare, layers * (each + 1) - 1, total)
            if slots >= layers * each:
                return slots, self.staging(layout, slots), overflow
        return None

    def best(self, context: int) -> Fit | None:
        """Resident where that may be and fits."""
        fits = (self.fit(context, placement) for placement in self.placements)
        return next((fit for fit in fits if fit is not None), None)

    def largest(self, placement: str | None) -> Fit | None:
        """The largest context, in whole pages unless all fits."""

        def weigh(context: int) -> Fit | None:
            return self.best(context) if placement is None else self.fit(context, placement)

        page = self.plan["kv_cache"]["page_size"]
        if weigh(self.most) is not None:
            return weigh(self.most)
        pages = range(1, self.most // page + 1)
        fitting = bisect_left(pages, True, key=lambda count: weigh(count * page) is None)
        return weigh(fitting * page) if fitting else None

    def picked(self) -> Fit | None:
        """What `auto` must choose: the best trade above the floor (D16)."""
        exponent, floor = PREFER[self.asked["serving"]["prefer"]]
        least = min(self.most, self.plan["kv_cache"]["page_size"])
        floor = max(least, min(self.most, floor))
        while self.best(floor) is None:
            if floor == least:
                return None
            floor = max(least, floor // 2)
        # Every multiple of 4,096, or of as much more as makes 64 of them; the last with all experts resident.
        step = 4_096 * max(1, -(-self.most // (4_096 * 64)))
        contexts = {floor, self.most, *range(up(floor, step), self.most + 1, step)}
        last = self.largest("resident") if "resident" in self.placements else None
        if last is not None and last.context > floor:
            contexts.add(last.context)
        fits = [fit for context in contexts if (fit := self.best(context)) is not None]
        return max(fits, key=lambda fit: (self._score(fit, exponent), fit.context))

    def _score(self, fit: Fit, exponent: float) -> float:
        speed = self.at(fit.layout, fit.slots, fit.span)
        turns = log(speed.turn_s(1)) + log(speed.turn_s(self.requests))
        return exponent * log(fit.context) - turns / 2

    @cached_property
    def chosen(self) -> Fit | None:
        """What was asked for, the most, or the pick; the pool of a resident plan grows into what is free (D2)."""
        asked = self.asked["serving"]["context"]
        if asked == "auto":
            fit = self.picked()
        else:
            fit = self.largest(None) if asked == "max" else self.best(min(asked, self.most))
        if fit is None or fit.placement == "offload" or self.asked["serving"]["pool"] != "auto":
            return fit
        share = 1 if self.plan["kv_cache"]["type"] == "none" else 2
        page = self.plan["kv_cache"]["page_size"]
        room = (fit.free + self.kv(fit.pool)) // PLACE * PLACE // self.page_bytes - self.requests
        pool = max(fit.pool, min(share * self.requests * fit.context, room * page))
        return replace(fit, pool=pool, free=fit.free + self.kv(fit.pool) - self.kv(pool))

    def row(self, fit: Fit) -> dict[str, float]:
        """A frontier row's numbers."""
        speed = self.at(fit.layout, fit.slots, fit.span)
        numbers = (
            fit.pool,
            fit.slots,
            min(deal(fit.slots, self.model.layers)),
            fit.staging,
            speed.fraction,
            speed.hit_rate,
            1 / speed.decode_s(1, 8_192),
            self.requests / speed.decode_s(self.requests, 8_192),
            8_192 / speed.prefill_s(8_192),
            speed.first_s(2_000),
            speed.turn_s(1),
            fit.free,
        )
        return dict(zip(ROW_NUMBERS, numbers, strict=True))

    def contexts(self, chosen: Fit) -> Iterator[int]:
        """Powers of two and 3 x 2^n from 8k, the model's end, the last resident, the largest that fits, the chosen."""
        power = 8_192
        while power <= self.most:
            yield from (power, power // 2 * 3)
            power *= 2
        yield self.most
        if "resident" in self.placements and (last := self.largest("resident")) is not None:
            yield last.context
        if (largest := self.largest(None)) is not None:
            yield largest.context
        yield chosen.context


def close(one: float, other: float) -> bool:
    """Integers exactly, floats to 1e-6."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
