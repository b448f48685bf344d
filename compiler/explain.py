"""What a plan says to people: the one line, the summary, the table; plain text, no colour."""

from collections.abc import Iterable

from firmtoken.compiler.folded_tables import frontier_table, kernel_table
from firmtoken.compiler.layer_reasons import UnknownPath
from firmtoken.compiler.ledger import Ledger, Line
from firmtoken.compiler.people import HEADING, expectations, not_runnable
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.quantities import count, percent, rate, seconds, size
from firmtoken.compiler.reasons import explain
from firmtoken.compiler.tables import columns, paragraph

__all__ = ["UnknownPath", "context_line", "explain", "opening", "page", "summary", "table"]


def context_line(plan: Plan) -> str:
    """One greppable line: what one request may hold, how many experts are resident, how fast that is."""
    context, experts, cache = plan.context, plan.experts, plan.kv_cache
    return " | ".join(
        (
            f"effective context {context.effective:,} of {context.model_max:,} "
            f"({_limit(context.limited_by)})",
            f"experts {experts.slots:,} of {experts.total:,} resident "
            f"({percent(experts.resident_fraction)})",
            f"pool {cache.tokens:,} for {count(plan.schedule.max_num_seqs, 'request')}",
            f"kv {cache.dtype}",
            f"decode ~{rate(plan.estimates.decode_tokens_per_s)} tok/s (estimated)",
        )
    )


def _limit(limited_by: str) -> str:
    return "as asked" if limited_by == "asked" else f"limited by {limited_by.replace('_', ' ')}"


def summary(plan: Plan) -> str:
    """What `ft run` prints before the first byte is allocated."""
    blocks = [*opening(plan), _reasons(plan), frontier_table(plan), _warnings(plan)]
    return page(blocks)


def table(plan: Plan) -> str:
    """The whole plan for a terminal of 100 columns."""
    blocks = [
        *opening(plan),
        _reasons(plan),
        _ledger("device memory", plan.memory.device),
        [
            *_ledger("host memory", plan.memory.host),
            "  `ft explain PROFILE memory`: what each line is for",
        ],
        frontier_table(plan),
        kernel_table(plan),
        _streams(plan),
        _schedule(plan),
        _estimates(plan),
        _warnings(plan),
        _advice(plan),
    ]
    return page(blocks)


def opening(plan: Plan) -> list[list[str]]:
    """How every text about a plan begins: the one line, whether it can run, what it is, what to expect."""
    first = [context_line(plan)]
    if note := not_runnable(plan):
        first += paragraph(note)
    return [first, _heading(plan), _expectations(plan)]


def page(blocks: list[list[str]]) -> str:
    """Blocks of lines with an empty line between them."""
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heading(plan: Plan) -> list[str]:
    lines = [f"plan {plan.profile.name}  {plan.fingerprint[:12]}"]
    if plan.profile.description:
        lines += paragraph(plan.profile.description, indent="  ")
    machine = str(plan.hardware.get("name", plan.device.kind))
    lines.append(f"  {plan.model.name} on {machine} ({plan.device.kind})")
    return lines


def _expectations(plan: Plan) -> list[str]:
    return [HEADING, *_labelled(expectations(plan))]


def _reasons(plan: Plan) -> list[str]:
    reasons = (
        ("context", plan.context.because),
        ("experts", plan.experts.because),
        ("cache", plan.kv_cache.because),
    )
    return ["why", *_labelled(reasons)]


def _labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences behind their labels, wrapped beside them."""
    return [
        line
        for label, text in rows
        for line in paragraph(text, first=f"  {label:<9}", indent=" " * 11)
    ]


def _ledger(title: str, side: Ledger) -> list[str]:
    reserve = side.capacity - side.budget
    kept = f", {size(reserve)} reserved" if reserve else ""
    rows = [
        (f"  {line.name}", f"{line.bytes:,}", size(line.bytes), _counted(line))
        for line in side.lines
    ]
    rows.append(("  free", f"{side.free:,}", size(side.free), ""))
    heading = f"{title}: {size(side.total)} of {size(side.capacity)}{kept}"
    return [heading, *columns(rows, "<>><")]


def _counted(line: Line) -> str:
    return "" if line.unit == "1" else count(line.count, line.unit)


def _streams(plan: Plan) -> list[str]:
    streams = plan.streams
    names = ", ".join(streams.names)
    heading = f"streams, queues of work on the device: {names}"
    if streams.edges:
        heading += f"; {count(len(streams.edges), 'event')} between them"
    return [heading, *paragraph(streams.because, indent="  ")]


def _schedule(plan: Plan) -> list[str]:
    schedule = plan.schedule
    heading = (
        f"schedule: prompts in passes of {schedule.prefill_span:,} tokens (span), experts in chunks of "
        f"{schedule.moe_chunk:,}, attention in tiles of {schedule.mixer_tile:,}"
    )
    return [
        *paragraph(heading, indent="  ", first=""),
        *paragraph(schedule.because, indent="  "),
    ]


def _estimates(plan: Plan) -> list[str]:
    found = plan.estimates
    moved = found.bytes_per_token
    heading = (
        f"estimates: decode (writing) {rate(found.decode_tokens_per_s)} tok/s, prefill (reading) "
        f"{rate(found.prefill_tokens_per_s)} tok/s, no first token before {seconds(found.ttft_floor_s)}"
    )
    bytes_moved = (
        f"a token reads {size(moved.device)} of the device, {size(moved.link)} over the link"
    )
    return [
        heading,
        *paragraph(bytes_moved, indent="  "),
        *paragraph(found.because, indent="  "),
    ]


def _warnings(plan: Plan) -> list[str]:
    lines = []
    for warning in plan.warnings:
        lines += paragraph(f"warning {warning.code}: {warning.message}", indent="  ", first="")
        lines += paragraph(f"hint: {warning.hint}", indent="  ")
    return lines


def _advice(plan: Plan) -> list[str]:
    if not plan.advice:
        return []
    lines = ["advice"]
    for advice in plan.advice:
        lines += paragraph(f"{advice.change}: {advice.gain} ({advice.because})", indent="  ")
        lines.append(f"    --set {advice.set}")
    return lines
