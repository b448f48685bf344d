"""`Fits`: whether a context fits the device and what is left for experts then: both ledgers, complete.

The one place where bytes are weighed; `split_memory` asks it for many contexts and keeps one answer.
"""

from dataclasses import dataclass

from firmtoken.compiler.costs import Costs, Residency, describe_costs
from firmtoken.compiler.facts import (
    Batches,
    CacheChoice,
    Candidates,
    ExpertSplit,
    Laid,
    ModelFacts,
)
from firmtoken.compiler.ledger import Ledger, Line
from firmtoken.compiler.ledger_lines import (
    bank_line,
    base_host_lines,
    expert_lines,
    fixed_lines,
    kv_line,
    least_slots_line,
    ledger,
    num_pages,
    page_bytes,
    parked_line,
    pinned_bytes,
    restart_copy_line,
    snapshot_line,
)
from firmtoken.compiler.machine import Machine, uses_graphs
from firmtoken.compiler.slot_split import (
    NoSlots,
    exact_slots,
    fill_slots,
    is_small,
    resident_split,
)
from firmtoken.compiler.speed import (
    bank_stream_s,
    compute_s,
    hiding_tokens,
)
from firmtoken.compiler.tensor_bytes import ALIGN
from firmtoken.schema.profile import Profile

PLACEMENTS = ("resident", "offload")
HIDDEN_SHARE = 0.5
"""In waves every chunk streams the bank: one that hides less of it would more than double the time of a long prompt."""
SNAPSHOTS_PER_REQUEST = 8
LEAST_SNAPSHOTS = 16
SNAPSHOT_SHARE = 8
"""At most one part in so many of what the host has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A split that fits both sides."""

    context: int
    pool: int
    placement: str
    experts: ExpertSplit
    span: int
    device: Ledger

    @property
    def slots(self) -> int:
        """Copies that decode may hit."""
        return sum(self.experts.slots_per_layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What does not fit, and by how much."""

    side: str
    """`device` or `host`."""
    placement: str
    needed: int
    available: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host's ledger for one placement, and how many snapshots it has room for."""

    ledger: Ledger
    snapshots: int


class Fits:
    """Weighs contexts for one profile. What does not depend on the context is computed once."""

    def __init__(
        self,
        profile: Profile,
        facts: ModelFacts,
        batches: Batches,
        cache: CacheChoice,
        candidates: Candidates,
        machine: Machine,
    ) -> None:
        self.profile = profile
        self.facts = facts
        self.batches = batches
        self.cache = cache
        self.candidates = candidates
        self.machine = machine
        self.requests = batches.max_num_seqs
        captured = uses_graphs(profile)
        self._fixed = {
            name: fixed_lines(
                machine,
                facts,
                batches,
                cache,
                laid,
                candidates.workspaces[name],
                captured=captured,
            )
            for name, laid in candidates.laid.items()
        }
        self.costs: dict[str, Costs] = {
            name: describe_costs(
                machine,
                facts,
                captured=captured,
                overlaps=laid.streams.layout == "two",
                slot_bytes=candidates.slot_bytes,
                kv_bytes_per_token=facts.kv_elements_per_token * cache.kv_bytes_per_element,
                state_bytes=cache.state_bytes_per_sequence,
                launches=laid.launches,
                mixer_tile=batches.mixer_tile,
                moe_chunk=batches.moe_chunk,
                resident=name == "resident",
            )
            for name, laid in candidates.laid.items()
        }
        self.hosts: dict[str, Host | Shortage] = {
            name: self._host(name, candidates.laid[name]) for name in PLACEMENTS
        }
        self.placements = self._placements()

    def of(self, profile: Profile) -> "Fits":
        """The same machine and layouts for a profile that differs in what it asks of memory."""
        return Fits(profile, self.facts, self.batches, self.cache, self.candidates, self.machine)

    def best(self, context: int) -> Fit | Shortage:
        """Resident where that fits and may be, else offloaded; raises nothing."""
        shortage: Shortage | None = None
        for placement in self.placements:
            found = self.weigh(context, placement)
            if isinstance(found, Fit):
                return found
            shortage = found
        assert shortage is not None, "a profile always allows one placement"
        return shortage

    def weigh(self, context: int, placement: str) -> Fit | Shortage:
        """A context under one placement, its pool no larger than it must be."""
        host = self.hosts[placement]
        if isinstance(host, Shortage):
            return host
        pool = self.least_pool(context)
        if placement == "resident":
            return self._checked(self._resident(context, pool))
        return self._weigh_offload(context, pool)

    def least_pool(self, context: int) -> int:
        """The pool as asked, or one whole request (D2)."""
        asked = self.profile.serving.pool
        return context if asked == "auto" else asked

    def residency(self, fit: Fit) -> Residency:
        """What the speed of a fit depends on."""
        return Residency(
            offloaded=fit.placement == "offload",
            slots=fit.slots,
            total=self.facts.total_experts,
            span=fit.span,
            waves=fit.experts.waves,
        )

    def grown(self, fit: Fit) -> Fit:
        """The same with the pool grown into what is free: one share to run, one to cache prefixes (D2)."""
        most = self.useful_pool(fit.context)
        if self.profile.serving.pool != "auto" or fit.placement != "resident" or most <= fit.pool:
            return fit
        others = fit.device.total - self._kv(fit.pool).bytes
        room = (fit.device.budget - others) // ALIGN * ALIGN
        pages = room // page_bytes(self.facts, self.cache)
        tokens = (pages - num_pages(0, self.cache.page_size, self.requests)) * self.cache.page_size
        pool = max(fit.pool, min(most, tokens))
        return self._resident(fit.context, pool)

    def useful_pool(self, context: int) -> int:
        """Tokens that a load can use: every request at its longest, and as much again for cached prefixes."""
        share = 1 if self.cache.type == "none" else 2
        return share * self.requests * context

    def _placements(self) -> tuple[str, ...]:
        asked, slots = self.profile.experts.placement, self.profile.experts.slots
        if asked != "auto":
            return (asked,)
        if slots == "auto":
            return ("resident", "offload")
        return ("resident",) if slots == self.facts.total_experts else ("offload",)

    def _resident(self, context: int, pool: int) -> Fit:
        return self._fit(context, pool, resident_split(self.facts), self._least_span())

    def _weigh_offload(self, context: int, pool: int) -> Fit | Shortage:
        whole = self._weigh_whole(context, pool)
        if "waves" not in self.candidates.laid:
            return whole
        exact = self.profile.experts.slots != "auto"
        if isinstance(whole, Fit) and (exact or is_small(whole.experts)):
            return whole  # waves leave room for more slots, and there may be none or few
        waves = self.in_waves(context, pool)
        if isinstance(whole, Shortage):
            # Of two that do not fit the one that lacks less is told: a larger device must hold that.
            least = isinstance(waves, Shortage) and whole.needed < waves.needed
            return whole if least else waves
        if isinstance(waves, Shortage):
            return whole
        # Where whole layers are staged for no more than a chunk either, waves stream the bank no more often.
        return waves if whole.span <= waves.span or self.reads_well(waves) else whole

    def in_waves(self, context: int, pool: int) -> Fit | Shortage:
        """Offloaded, with a layer's misses in waves; only where there are programs for it."""
        return self._offload(context, pool, self._least_span(), "waves")

    def reads_well(self, waves: Fit) -> bool:
        """Whether the one chunk that is a span hides enough of the bank's stream."""
        costs = self.costs["offload"]
        stream = bank_stream_s(costs, self.residency(waves))
        return compute_s(costs, waves.span, 0) >= HIDDEN_SHARE * stream

    def _weigh_whole(self, context: int, pool: int) -> Fit | Shortage:
        asked = self.profile.schedule.prefill_span
        found = self._offload(context, pool, self._least_span(), "offload")
        # A longer span parks more, so fewer experts stay, so the span that hides them grows: two rounds settle it.
        while asked == "auto" and isinstance(found, Fit):
            longer = self._hiding_span(found)
            if longer <= found.span:
                break
            again = self._offload(context, pool, longer, "offload")
            if isinstance(again, Shortage):
                break
            found = again
        return found

    def _least_span(self) -> int:
        asked = self.profile.schedule.prefill_span
        return self.batches.moe_chunk if asked == "auto" else asked

    def _hiding_span(self, fit: Fit) -> int:
        # N* cut to the context, in whole chunks (D7)
        hiding = hiding_tokens(self.costs["offload"], self.residency(fit), fit.context)
        return -(-hiding // self.batches.moe_chunk) * self.batches.moe_chunk

    def _offload(self, context: int, pool: int, span: int, layout: str) -> Fit | Shortage:
        asked = self.profile.experts.slots
        if asked != "auto":
            experts = exact_slots(self.facts, self.requests, asked, layout)
            return self._checked(self._fit(context, pool, experts, span))
        lines = self._lines(pool, layout, span)
        left = self.machine.budget - sum(part.bytes for part in lines)
        have = left // self.candidates.slot_bytes
        split = fill_slots(self.facts, self.requests, have, layout)
        if isinstance(split, NoSlots):
            lines = (*lines, least_slots_line(self.candidates.slot_bytes, split.needed))
            return Shortage(
                side="device",
                placement="offload",
                needed=sum(part.bytes for part in lines),
                available=self.machine.budget,
                lines=lines,
            )
        return self._fit(context, pool, split, span)

    def _fit(self, context: int, pool: int, experts: ExpertSplit, span: int) -> Fit:
        lines = (
            *self._lines(pool, experts.layout, span),
            *expert_lines(self.candidates.slot_bytes, experts),
        )
        device = ledger(self.machine.capacity, self.machine.budget, lines)
        return Fit(
            context=context,
            pool=pool,
            placement="resident" if experts.layout == "resident" else "offload",
            experts=experts,
            span=span,
            device=device,
        )

    def _checked(self, fit: Fit) -> Fit | Shortage:
        if fit.device.free >= 0:
            return fit
        return Shortage(
            side="device",
            placement=fit.placement,
            needed=fit.device.total,
            available=fit.device.budget,
            lines=fit.device.lines,
        )

    def _lines(self, pool: int, layout: str, span: int) -> tuple[Line, ...]:
        parked = parked_line(self.candidates.laid[layout], span, self.batches.moe_chunk)
        return (*self._fixed[layout], self._kv(pool), parked)

    def _kv(self, pool: int) -> Line:
        return kv_line(self.facts, self.cache, pool, self.requests)

    def _host(self, placement: str, laid: Laid) -> Host | Shortage:
        bank = (bank_line(self.facts, self.candidates),) if placement == "offload" else ()
        lines = (*bank, *base_host_lines(self.machine, laid))
        budget, pinnable = self.machine.host_memory, self.machine.pinnable
        wanted = (*lines, *self._wanted_snapshot())
        total = sum(part.bytes for part in wanted)
        if total > budget or pinned_bytes(wanted) > pinnable:
            pinning = total <= budget
            return Shortage(
                side="host",
                placement=placement,
                needed=pinned_bytes(wanted) if pinning else total,
                available=pinnable if pinning else budget,
                lines=wanted,
            )
        left = min(budget - sum(part.bytes for part in lines), pinnable - pinned_bytes(lines))
        snapshots = self._snapshots(left)
        if snapshots:
            lines = (*lines, snapshot_line(self.cache, snapshots, left))
        if placement == "resident" and self.machine.shares_banks:
            copy = restart_copy_line(self.facts, self.candidates)
            if copy.bytes <= budget - sum(part.bytes for part in lines):
                lines = (*lines, copy)
        return Host(ledger=ledger(budget, budget, lines), snapshots=snapshots)

    def _wanted_snapshot(self) -> tuple[Line, ...]:
        """Room for one snapshot where its prefix cache is asked for by name: it may take an eighth of what is left."""
        if self.profile.cache.type != "hybrid_radix":
            return ()
        return (snapshot_line(self.cache, SNAPSHOT_SHARE, 0),)

    def _snapshots(self, left: int) -> int:
        if not self.cache.snapshots:
            return 0
        wanted = max(LEAST_SNAPSHOTS, SNAPSHOTS_PER_REQUEST * self.requests)
        return min(wanted, left // SNAPSHOT_SHARE // self.cache.state_bytes_per_sequence)
