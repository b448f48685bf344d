"""`ft diff`: what differs between two plans, the numbers that people ask for first."""

from collections.abc import Iterator, Mapping, Sequence

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_data
from firmtoken.runtime.cli.compiled import compile_argument

SHOWN = ("context", "experts", "kv_cache", "schedule", "admission")
ANY_SIZE = 2**31
"""Upper end of a kernel row without an end."""


def diff_plans(first: str, second: str, overrides: Sequence[str]) -> int:
    """Print headline and differences; 0 also when there are some."""
    one, two = (compile_argument(each, overrides).plan for each in (first, second))
    print(f"{'':28s} {one.profile.name:>20s} {two.profile.name:>20s}")
    for name, before, after in _headline(one, two):
        mark = " " if before == after else "~"
        print(f"{mark} {name:26s} {before:>20s} {after:>20s}")
    lines = list(differences(one, two))
    print(f"\n{len(lines)} differences in the choices" + (":" if lines else ""))
    for line in lines:
        print(f"  {line}")
    return 0


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


def _headline(one: Plan, two: Plan) -> Iterator[tuple[str, str, str]]:
    yield from zip(_HEADINGS, _figures(one), _figures(two), strict=True)


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
        f"{plan.experts.slots:,} of {plan.experts.total:,} ({plan.experts.resident_fraction:.0%})",
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
        yield f"kernels.{kernel.op}.{kernel.phase}{_row(kernel)}", kernel.kernel
    yield "streams", f"{plan.streams.layout}: {', '.join(plan.streams.names)}"


def _row(kernel: KernelChoice) -> str:
    """What tells rows of one op apart."""
    least, most = kernel.sizes
    return f"[{kernel.format}]" if most == ANY_SIZE else f"[{kernel.format}, {least} to {most}]"


def _walk(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "because":
                yield from _walk(f"{path}.{key}", inner)
    else:
        yield path, value
