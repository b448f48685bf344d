"""The frontier and the kernels as short tables: what repeats is said once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.plan import FrontierRow, Plan
from firmtoken.compiler.quantities import percent, rate, seconds
from firmtoken.compiler.tables import columns, paragraph

MEANINGS = {
    "documented": "documented: known from papers and manuals, not measured here",
    "compiled": "compiled: built here, not timed",
    "planned": "planned: nothing launches it yet",
    "ready": "ready to run",
}
"""Words of `evidence` and `status` (D14) for those who meet them first."""


def frontier_table(plan: Plan) -> list[str]:
    """Contexts that were weighed; of neighbours with equal figures only the chosen one and the last."""
    requests = plan.schedule.max_num_seqs
    together = f"all {requests}"
    head = ("  context", "experts", "hits", "tok/s", together, "prompt/s", "2k prompt", "")
    title = (
        "context against experts and speed (predicted): experts on the device, hits (share of a token's experts "
        f"found there), tokens/s of one request and of {together} together, tokens/s of reading a prompt, seconds "
        "until the first token of one of 2,000"
    )
    rows = [row for _, run in groupby(plan.frontier, key=_figures) for row in _folded(tuple(run))]
    return [
        *paragraph(title, indent="  ", first=""),
        *columns([head, *rows], ">>>>>>><"),
        *_crowded(plan),
    ]


def _crowded(plan: Plan) -> list[str]:
    """Why several requests together may write less than one: the reader would take it for a mistake."""
    chosen = next(row for row in plan.frontier if row.chosen)
    if chosen.decode_tokens_per_s_full >= chosen.decode_tokens_per_s:
        return []
    return paragraph(
        f"{plan.schedule.max_num_seqs} together write less than one alone: they push each other's experts off the "
        "device; with `serving.requests=1` the others wait",
        indent="  ",
    )


def _folded(run: Sequence[FrontierRow]) -> Iterator[tuple[str, ...]]:
    kept = [row for row in run if row.chosen or row is run[-1]]
    for row in kept:
        folded = row is kept[0] is not run[0]
        since = f", as from {run[0].context:,} on" if folded else ""
        words = f"<- chosen{since}" if row.chosen else f"{row.because}{since}"
        if row.chosen and not folded:
            words += f"; {row.because}"
        yield f"  {row.context:,}", *_figures(row), words


def _figures(row: FrontierRow) -> tuple[str, ...]:
    return (
        percent(row.resident_fraction),
        f"{row.hit_rate:.3f}",
        rate(row.decode_tokens_per_s),
        rate(row.decode_tokens_per_s_full),
        rate(row.prefill_tokens_per_s),
        seconds(row.ttft_s),
    )


def kernel_table(plan: Plan) -> list[str]:
    """A row for each op and format: its kernel in decode and in prefill; what all have in common stands above."""
    labels = Counter(_label(row) for row in plan.kernels)
    usual = labels.most_common(1)[0][0]
    words = "; ".join(MEANINGS.get(word, word) for word in usual)
    title = (
        f"kernels, the code of each op ({'all are' if len(labels) == 1 else 'most are'} {words})"
    )
    rows = [("  op", "format", "decode (writing)", "prefill (reading)", "")]
    keys = dict.fromkeys((row.op, row.format) for row in plan.kernels)
    for op, form in keys:
        own = [row for row in plan.kernels if (row.op, row.format) == (op, form)]
        odd = dict.fromkeys(_label(row) for row in own if _label(row) != usual)
        notes = "; ".join(", ".join(label) for label in odd)
        rows.append((f"  {op}", form, _names(own, "decode"), _names(own, "prefill"), notes))
    return [
        *paragraph(title, indent="  ", first=""),
        *columns(rows, "<<<<<"),
        "  `ft explain PROFILE kernels`: why each, and why not the others",
    ]


def _names(rows: Sequence[KernelChoice], phase: str) -> str:
    names = dict.fromkeys(row.kernel for row in rows if row.phase == phase)
    return ", ".join(names) or "-"


def _label(row: KernelChoice) -> tuple[str, str]:
    return row.evidence, row.status
