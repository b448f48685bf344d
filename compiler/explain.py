"""What a plan says to people: the one line, the summary, the table; plain text, no colour."""

from firmtoken.compiler.layer_reasons import UnknownPath
from firmtoken.compiler.ledger import Ledger
from firmtoken.compiler.plan import FrontierRow, Plan
from firmtoken.compiler.quantities import percent, rate, seconds, size
from firmtoken.compiler.reasons import explain
from firmtoken.compiler.tables import columns, paragraph

__all__ = ["UnknownPath", "context_line", "explain", "planned_note", "summary", "table"]


def context_line(plan: Plan) -> str:
    """One greppable line: what one request may hold, how many experts are resident, how fast that is."""
    context, experts, cache = plan.context, plan.experts, plan.kv_cache
    return " | ".join(
        (
            f"effective context {context.effective:,} of {context.model_max:,} "
            f"(limited by {context.limited_by})",
            f"experts {experts.slots:,} of {experts.total:,} resident "
            f"({percent(experts.resident_fraction)})",
            f"pool {cache.tokens:,} for {_units(plan.schedule.max_num_seqs, 'request')}",
            f"kv {cache.dtype}",
            f"decode ~{rate(plan.estimates.decode_tokens_per_s)} tok/s (estimated)",
        )
    )


def summary(plan: Plan) -> str:
    """What `ft run` prints before the first byte is allocated."""
    blocks = [
        [context_line(plan)],
        _heading(plan),
        _reasons(plan),
        _frontier(plan),
        _warnings(plan),
    ]
    return _joined(blocks)


def table(plan: Plan) -> str:
    """The whole plan for a terminal of 100 columns."""
    blocks = [
        [context_line(plan)],
        _heading(plan),
        _reasons(plan),
        _ledger("device memory", plan.memory.device),
        _ledger("host memory", plan.memory.host),
        _kernels(plan),
        _streams(plan),
        _schedule(plan),
        _frontier(plan),
        _estimates(plan),
        _warnings(plan),
        _advice(plan),
    ]
    return _joined(blocks)


def _joined(blocks: list[list[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heading(plan: Plan) -> list[str]:
    lines = [f"plan {plan.profile.name}  {plan.fingerprint[:12]}"]
    if plan.profile.description:
        lines += paragraph(plan.profile.description, indent="  ")
    machine = str(plan.hardware.get("name", plan.device.kind))
    lines.append(f"  {plan.model.name} on {machine} ({plan.device.kind})")
    if note := planned_note(plan):
        lines.append(f"  {note}")
    return lines


def planned_note(plan: Plan) -> str:
    """What a reader must know of a plan whose kernels are not all written; empty if they are."""
    planned = sum(row.status == "planned" for row in plan.kernels)
    if not planned:
        return ""
    return f"{planned} of {len(plan.kernels)} kernels are planned, not written: `ft run` refuses this plan"


def _reasons(plan: Plan) -> list[str]:
    reasons = (
        ("context", plan.context.because),
        ("experts", plan.experts.because),
        ("cache", plan.kv_cache.because),
    )
    return [
        line
        for name, because in reasons
        for line in paragraph(because, first=f"{name:<9}", indent=" " * 9)
    ]


def _ledger(title: str, side: Ledger) -> list[str]:
    reserve = side.capacity - side.budget
    kept = f", {size(reserve)} reserved" if reserve else ""
    rows = [
        (f"  {line.name}", f"{line.bytes:,}", size(line.bytes), _units(line.count, line.unit))
        for line in side.lines
    ]
    rows.append(("  free", f"{side.free:,}", size(side.free), ""))
    heading = f"{title}: {size(side.total)} of {size(side.capacity)}{kept}"
    return [heading, *columns(rows, "<>><")]


def _units(count: int, unit: str) -> str:
    if unit == "1":
        return ""
    return f"{count:,} {unit}" + ("" if count == 1 else "s")


def _kernels(plan: Plan) -> list[str]:
    rows = [
        (
            f"  {row.op}",
            row.phase,
            row.format,
            row.kernel,
            row.evidence if row.status == "ready" else f"{row.evidence}, {row.status}",
            f"{len(row.rejected)} rejected" if row.rejected else "",
        )
        for row in plan.kernels
    ]
    return ["kernels", *columns(rows, "<<<<<<")]


def _streams(plan: Plan) -> list[str]:
    streams = plan.streams
    names = ", ".join(streams.names)
    heading = f"streams {streams.layout}: {names}, {len(streams.edges)} edges between them"
    return [heading, *paragraph(streams.because, indent="  ")]


def _schedule(plan: Plan) -> list[str]:
    schedule = plan.schedule
    heading = (
        f"schedule: mixer tile {schedule.mixer_tile:,}, expert chunk {schedule.moe_chunk:,}, "
        f"span {schedule.prefill_span:,}, order {schedule.order}"
    )
    return [heading, *paragraph(schedule.because, indent="  ")]


def _frontier(plan: Plan) -> list[str]:
    head = ("  context", "experts", "hit", "tok/s", "all", "prefill/s", "ttft 2k", "")
    rows = [head, *(_frontier_row(row) for row in plan.frontier)]
    requests = plan.schedule.max_num_seqs
    title = f"frontier (predicted; `all`: {requests} requests together)"
    return [title, *columns(rows, ">>>>>>><")]


def _frontier_row(row: FrontierRow) -> tuple[str, ...]:
    return (
        f"  {row.context:,}",
        percent(row.resident_fraction),
        f"{row.hit_rate:.3f}",
        rate(row.decode_tokens_per_s),
        rate(row.decode_tokens_per_s_full),
        rate(row.prefill_tokens_per_s),
        seconds(row.ttft_s),
        ("<- chosen; " if row.chosen else "") + row.because,
    )


def _estimates(plan: Plan) -> list[str]:
    found = plan.estimates
    moved = found.bytes_per_token
    heading = (
        f"estimates: decode {rate(found.decode_tokens_per_s)} tok/s, prefill "
        f"{rate(found.prefill_tokens_per_s)} tok/s, first token from {seconds(found.ttft_floor_s)}"
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
