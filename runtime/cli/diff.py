"""`ft diff`: two plans side by side: the figures people ask for, what they mean, which choices differ and why."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.comparison import meaning
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_data
from firmtoken.compiler.quantities import count, percent
from firmtoken.compiler.tables import columns, cut, paragraph
from firmtoken.runtime.cli.compiled import compile_argument

SHOWN = ("context", "experts", "kv_cache", "schedule", "admission")
WIDEST = 28
"""Letters of a name above its figures."""
ANY_SIZE = 2**31
"""Upper end of a kernel row without an end."""


def diff_plans(first: str, second: str, overrides: Sequence[str]) -> int:
    """Print figures, what they mean, and the choices that differ; 0 also when some do."""
    one, two = (compile_argument(each, overrides).plan for each in (first, second))
    print(diff_text(one, two), end="")
    return 0


def diff_text(one: Plan, two: Plan) -> str:
    """Both plans' figures side by side, the meaning in sentences, each differing choice with both reasons."""
    names = one.profile.name, two.profile.name
    rows = [
        (f"{' ' if before == after else '~'} {name}", before, after)
        for name, before, after in zip(_HEADINGS, _figures(one), _figures(two), strict=True)
    ]
    lines = columns([("", *map(_heading, names)), *rows], "<>>")
    lines += ["", "what it means (computed, not measured)"]
    for sentence in meaning(one, two):
        lines += paragraph(sentence, indent="    ", first="  ")
    changed = list(differences(one, two))
    lines += ["", f"{count(len(changed), 'difference')} in the choices" + (":" if changed else "")]
    for group, members in groupby(changed, key=_group):
        lines += [cut(f"  {line}") for line in members]
        for name, because in _named_reasons(names, _reasons(group, one, two)):
            lines += paragraph(f"{name}: {because}", indent="        ", first="      ")
    return "\n".join(lines) + "\n"


def _heading(name: str) -> str:
    """A plan's name no wider than its widest figure: a column that does not fit the page is lost."""
    return name if len(name) <= WIDEST else f"{name[: WIDEST - 3]}..."


def _named_reasons(names: tuple[str, str], reasons: tuple[str, str]) -> list[tuple[str, str]]:
    if reasons[0] == reasons[1]:
        return [("both", reasons[0])] if reasons[0] else []
    return [(name, because) for name, because in zip(names, reasons, strict=True) if because]


def _group(line: str) -> str:
    """What one reason covers: a part of the plan, or one row of the kernels."""
    path = line[2:].split(": ")[0]
    return path if path.startswith("kernels.") else path.split(".")[0]


def _reasons(group: str, one: Plan, two: Plan) -> tuple[str, str]:
    """Why each plan chose as it did; empty where a part gives no reason."""
    if not group.startswith("kernels."):
        return _reason(group, one), _reason(group, two)
    return _kernel_reason(group, one), _kernel_reason(group, two)


def _reason(part: str, plan: Plan) -> str:
    reasons = {
        "context": plan.context.because,
        "experts": plan.experts.because,
        "kv_cache": plan.kv_cache.because,
        "schedule": plan.schedule.because,
        "streams": plan.streams.because,
    }
    return reasons.get(part, "")  # admission has none


def _kernel_reason(path: str, plan: Plan) -> str:
    return next((row.because for row in plan.kernels if _kernel_path(row) == path), "")


def differences(one: Plan, two: Plan) -> Iterator[str]:
    """A line for each choice that `two` makes otherwise than `one`."""
    before, after = dict(_leaves(one)), dict(_leaves(two))
    for path in dict.fromkeys((*before, *after)):
        if path not in after:
            yield f"- {path}: {before[path]}"
        elif path not in before:
            yield f"+ {path}: {after[path]}"
        elif before[path] != after[path]:
            yield f"~ {path}: {before[path]} -> {after[path]}"


_HEADINGS = (
    "effective context",
    "pool, tokens",
    "experts resident",
    "device memory, GiB",
    "host memory, GiB",
    "decode, tokens/s (predicted)",
    "prefill, tokens/s (predicted)",
)


def _figures(plan: Plan) -> tuple[str, ...]:
    return (
        f"{plan.context.effective:,}",
        f"{plan.kv_cache.tokens:,}",
        f"{plan.experts.slots:,} of {plan.experts.total:,} ({percent(plan.experts.resident_fraction)})",
        f"{plan.memory.device.total / 2**30:.2f}",
        f"{plan.memory.host.total / 2**30:.2f}",
        f"{plan.estimates.decode_tokens_per_s:.1f}",
        f"{plan.estimates.prefill_tokens_per_s:.0f}",
    )


def _leaves(plan: Plan) -> Iterator[tuple[str, object]]:
    data = plan_to_data(plan)
    for name in SHOWN:
        yield from _walk(name, data[name])
    for kernel in plan.kernels:
        yield _kernel_path(kernel), kernel.kernel
    yield "streams", f"{plan.streams.layout}: {', '.join(plan.streams.names)}"


def _kernel_path(kernel: KernelChoice) -> str:
    """Op and phase, and what tells rows of one op apart."""
    least, most = kernel.sizes
    sizes = "" if most == ANY_SIZE else f", {least} to {most}"
    return f"kernels.{kernel.op}.{kernel.phase}[{kernel.format}{sizes}]"


def _walk(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "because":
                yield from _walk(f"{path}.{key}", inner)
    else:
        yield path, value
