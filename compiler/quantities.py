"""How plans write numbers to people: sizes, tokens, shares, rates."""

from math import ceil, floor

UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def size(num_bytes: int) -> str:
    """`1.23 GiB`: two decimals in the largest unit that gives at least 1."""
    for unit, factor in UNITS:
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:,.2f} {unit}"
    return f"{num_bytes:,} B"


def enough(num_bytes: int) -> str:
    """`1.01GiB`: as a profile writes it, rounded up, so that whoever writes it has enough."""
    unit, factor = next(((unit, factor) for unit, factor in UNITS if num_bytes >= factor), ("B", 1))
    hundredths = ceil(100 * num_bytes / factor)
    return f"{hundredths / 100:.2f}{unit}"


def exactly(num_bytes: int) -> str:
    """`1.00 GiB (1,073,792,000 bytes)`: where two decimals may hide the difference that is meant."""
    return f"{size(num_bytes)} ({num_bytes:,} bytes)"


def percent(share: float) -> str:
    """`40 %`; one decimal close to either end, rounded down, so that 99.97 does not read as all."""
    shown = 100 * share
    if 0 < shown < 1 or 99 < shown < 100:
        return f"{floor(10 * shown) / 10:.1f} %"
    return f"{shown:.0f} %"


def rate(per_second: float) -> str:
    """`58`, `9.3`: two digits at least."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def seconds(value: float) -> str:
    """`3.1 s`, `150 ms`."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def wait(value: float) -> str:
    """`3.1 s`, `85 ms`: two digits, as people feel it."""
    rounded = float(f"{value:.2g}")
    return f"{value:.1f} s" if rounded >= 1 else f"{round(1000 * rounded, 6):g} ms"


def duration(value: float) -> str:
    """`12.3 us`, `4.88 ms`, `1.30 s`: three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 0.9995:
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value * 1e6)} us"


def _three(value: float) -> str:
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{decimals}f}"


def count(number: int, noun: str) -> str:
    """`1 request`, `4 requests`, `4 launches`."""
    plural = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}" + ("" if number == 1 else plural)


def shorthand(tokens: int) -> str:
    """The shortest exact way a profile writes tokens: 65,536 -> `64k`."""
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)
