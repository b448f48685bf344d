"""Where the time of a decode step and of a prefill span goes, in lines for a terminal."""

from collections.abc import Sequence

from firmtoken.compiler.quantities import duration, percent, size
from firmtoken.compiler.tables import columns
from firmtoken.compiler.timeline import GROUPS, HOST, Timeline

LEAST_SHARE = 0.001
"""What takes less of the whole is not listed."""


def heading(timeline: Timeline) -> str:
    """What it is, how long it takes, and how far that is from the estimate."""
    total, estimate = timeline.total_s, timeline.estimate_s
    apart = 100 * (total / estimate - 1)
    return (
        f"{timeline.name}, {timeline.what}: {duration(total)} "
        f"(by the estimate {duration(estimate)}, {apart:+.1f} %)"
    )


def where_it_goes(timeline: Timeline) -> list[str]:
    """`routed experts 24 %`, ...: the parts of `main`, largest first; then what the link does."""
    parts = [f"{name} {percent(share)}" for name, _, share in _parts(timeline)]
    return [*parts, *_link(timeline)]


def summary(timelines: Sequence[Timeline]) -> str:
    """Both programs as tables."""
    blocks = []
    for timeline in timelines:
        rows = [
            (f"  {name}", duration(spent), percent(share))
            for name, spent, share in _parts(timeline)
        ]
        blocks.append(
            "\n".join(
                [
                    heading(timeline),
                    *columns(rows, "<>>"),
                    *(f"  {line}" for line in _link(timeline)),
                ]
            )
        )
    return "\n\n".join(blocks) + "\n"


def _parts(timeline: Timeline) -> list[tuple[str, float, float]]:
    """Name, seconds on `main` and share of the whole; together they are all of it but the link's last work."""
    spent = {group: timeline.busy_s("main", group) for group in GROUPS}
    spent["waiting for the link"] = timeline.waiting_s("link")
    spent["waiting for the host"] = timeline.waiting_s(HOST)
    shown = [
        (name, value) for name, value in spent.items() if value / timeline.total_s >= LEAST_SHARE
    ]
    shown.sort(key=lambda part: -part[1])
    return [(name, value, value / timeline.total_s) for name, value in shown]


def _link(timeline: Timeline) -> list[str]:
    if "link" not in timeline.streams:
        return ["nothing is copied beside compute"]
    busy = timeline.busy_s("link")
    copied = sum(launch.load.link_bytes for launch in timeline.launches)
    return [
        f"link busy {percent(busy / timeline.total_s)} ({duration(busy)}, {size(round(copied))})",
    ]
