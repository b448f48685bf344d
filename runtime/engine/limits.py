"""`Limits`: the numbers of a plan that scheduling needs, and nothing else of it."""

from dataclasses import dataclass

from firmtoken.compiler.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the scheduler may do."""

    page_size: int
    pages: int
    """Sentinel included."""
    state_slots: int
    snapshot_slots: int
    hybrid: bool
    """The model has linear layers: states and snapshots go with pages."""
    caching: bool
    max_num_seqs: int
    prefill_span: int
    graph_batch_sizes: tuple[int, ...]
    prefill_graph_rows: tuple[int, ...]
    offload: bool
    on_demand_cold: int
    on_demand_warm: int
    decode_every_units: int
    output_reserve: int
    max_preemptions: int
    max_passes: int
    effective_context: int

    def __post_init__(self) -> None:
        assert self.prefill_span >= self.page_size, "a span that holds no page makes no progress"
        assert self.graph_batch_sizes[-1] >= self.max_num_seqs

    @property
    def usable_pages(self) -> int:
        """Pages that requests may hold."""
        return self.pages - 1

    def padded(self, num_seqs: int) -> int:
        """The planned batch size that takes this many sequences."""
        return next(size for size in self.graph_batch_sizes if size >= num_seqs)

    def prompt_rows(self, num_tokens: int, num_seqs: int) -> int:
        """Rows of a span: those of the next captured prefill where there is one."""
        planned = self.prefill_graph_rows if num_seqs == 1 else ()
        return next((rows for rows in planned if rows >= num_tokens), num_tokens)


def limits_of(plan: Plan) -> Limits:
    """The scheduler's part of `plan`."""
    schedule, cache, admission = plan.schedule, plan.kv_cache, plan.admission
    return Limits(
        page_size=cache.page_size,
        pages=cache.pages,
        state_slots=cache.state_slots,
        snapshot_slots=cache.snapshot_slots,
        hybrid="linear" in plan.model.layer_kinds,
        caching=cache.type != "none",
        max_num_seqs=schedule.max_num_seqs,
        prefill_span=schedule.prefill_span,
        graph_batch_sizes=schedule.graph_batch_sizes,
        prefill_graph_rows=schedule.prefill_graph_rows,
        offload=plan.experts.placement == "offload",
        on_demand_cold=schedule.on_demand_below.cold,
        on_demand_warm=schedule.on_demand_below.warm,
        decode_every_units=schedule.decode_every_units,
        output_reserve=admission.output_reserve,
        max_preemptions=admission.max_preemptions,
        max_passes=admission.max_passes,
        effective_context=plan.context.effective,
    )
