"""The picture of timelines: streams as lanes, launches as boxes, events as arrows; all layers, then some magnified.

Groups differ in lightness and hatching, not in colour alone, so a grey print can be read. Times are seconds inside and
microseconds or milliseconds in the picture.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firmtoken.compiler.quantities import duration, size
from firmtoken.compiler.simulation import Arrow
from firmtoken.compiler.svg import element, label, title
from firmtoken.compiler.timeline import GROUPS, HOST, Launch, Timeline, latest
from firmtoken.compiler.timeline_text import heading, where_it_goes

WIDTH, MARGIN, LEFT = 1600, 20, 90
PLOT = WIDTH - LEFT - MARGIN
CHARACTER = 6.2
"""Width of a letter of the boxes' 11 px font, on the generous side."""
LEAST_BOX = 2.0
"""Pixels: where all layers are drawn, what is narrower is drawn together with what follows."""
NARROW, WIDE = 26, 84
"""Heights of a lane: all layers, and magnified."""
CLOSE, GAP = 6, 34
"""Between lanes; between magnified ones there is room for arrows."""
FILLS = {
    "routed experts": "#1d3f66",
    "projections": "#5f8fbf",
    "attention, GDN": "#a8d5ba",
    "routing, admission": "url(#dots)",
    "norms, sampling": "#ececec",
    "copies": "url(#hatch)",
    "enqueueing": "#8a8a8a",
}
WAITING = "url(#waiting)"
STYLE = (
    "text{font-family:sans-serif;font-size:12px;fill:#111}"
    ".big{font-size:17px;font-weight:bold}.light{fill:#fff}"
    ".mag{stroke:#222;stroke-width:.6}.small{font-size:11px}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".axis{stroke:#444;stroke-width:1}.band{fill:#f4f4f4}.lens{fill:#000;fill-opacity:.07;stroke:#555;stroke-width:.7}"
    ".event{stroke:#b00020;stroke-width:1.8;fill:none}.idle{stroke:#777;stroke-width:1;stroke-dasharray:4 3;fill:none}"
)
DEFINITIONS = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#fff3d6"/><rect width="2.4" height="6" fill="#b5651d"/></pattern>'
    '<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<rect width="5" height="5" fill="#f5d76e"/><circle cx="2.5" cy="2.5" r="1.2" fill="#333"/></pattern>'
    '<pattern id="waiting" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
    '<rect width="8" height="8" fill="#fff"/><rect width="1" height="8" fill="#b00020"/></pattern>'
    '<marker id="head" markerWidth="8" markerHeight="8" refX="6.5" refY="3.5" orient="auto">'
    '<path d="M0 0L7 3.5L0 7z" fill="#b00020"/></marker>'
    '<marker id="idlehead" markerWidth="8" markerHeight="8" refX="6.5" refY="3.5" orient="auto">'
    '<path d="M0 0L7 3.5L0 7z" fill="#777"/></marker>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A stretch of time as wide as the plot, and lanes in it."""

    timeline: Timeline
    start: float
    end: float
    top: float
    magnified: bool

    def x(self, at: float) -> float:
        return LEFT + PLOT * (min(max(at, self.start), self.end) - self.start) / (
            self.end - self.start
        )

    def y(self, stream: str) -> float:
        above = self.timeline.streams[: self.timeline.streams.index(stream)]
        return self.top + sum(self.height(other) + self.gap(other) for other in above)

    def height(self, stream: str) -> float:
        return WIDE if self.magnified and stream != HOST else NARROW

    def gap(self, stream: str) -> float:
        return GAP if self.magnified and stream != HOST else CLOSE

    @property
    def bottom(self) -> float:
        last = self.timeline.streams[-1]
        return self.y(last) + self.height(last)

    def inside(self) -> tuple[Launch, ...]:
        """Launches of which something can be seen."""
        return tuple(
            launch
            for launch in self.timeline.launches
            if launch.end > self.start and launch.start < self.end
        )


def draw(name: str, timelines: Sequence[Timeline]) -> str:
    """The SVG document for the plan called `name`."""
    parts = [label(MARGIN, 28, f"{name}: where the time goes, by the estimate", class_="big")]
    parts += _legend(52)
    top = 100.0
    for timeline in timelines:
        drawn, top = _panel(timeline, top)
        parts += drawn
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" '
            f'width="{WIDTH}" height="{top:.0f}" role="img">',
            title(f"Timeline of {name}"),
            f"<style>{STYLE}{_fills()}</style><defs>{DEFINITIONS}</defs>",
            element("rect", width=WIDTH, height=top, fill="white"),
            *parts,
            "</svg>\n",
        )
    )


def _fills() -> str:
    return "".join(f".{_style(group)}{{fill:{fill}}}" for group, fill in FILLS.items())


def _legend(top: float) -> Iterator[str]:
    x = float(MARGIN)
    entries = [*FILLS.items(), ("main waits", WAITING)]
    for name, fill in entries:
        yield element("rect", x=x, y=top, width=26, height=14, fill=fill, class_="mag")
        yield label(x + 32, top + 11.5, name)
        x += 50 + 7 * len(name)
    for name, style, head in (
        ("event waited for", "event", "head"),
        ("event long past", "idle", "idlehead"),
    ):
        yield _line(x, top + 7, x + 26, top + 7, style, f"url(#{head})")
        yield label(x + 32, top + 11.5, name)
        x += 50 + 7 * len(name)
    yield label(
        MARGIN, top + 34, "Point at a box to see op, layer, kernel, bytes, FLOP, time and waits."
    )


def _panel(timeline: Timeline, top: float) -> tuple[list[str], float]:
    """One timeline: summary, all layers, magnified layers. Returns its elements and where it ends."""
    parts = [label(MARGIN, top + 16, heading(timeline), class_="big")]
    parts.append(label(MARGIN, top + 36, "; ".join(where_it_goes(timeline))))
    whole = _Window(
        timeline=timeline, start=0.0, end=timeline.total_s, top=top + 66, magnified=False
    )
    first, last = timeline.middle_layers()
    start, end = timeline.stretch(first, last)
    lens = _Window(timeline=timeline, start=start, end=end, top=whole.bottom + 92, magnified=True)
    parts += _bands(whole)
    parts += _lanes(whole)
    parts += _runs(whole)
    parts += _axis(whole)
    parts += _magnifier(whole, lens)
    parts += _bands(lens)
    parts += _lanes(lens)
    parts += (_box(lens, launch) for launch in lens.inside() if launch.stream != HOST)
    parts += _waits(lens)
    parts += _arrows(lens)
    parts += _host_note(lens)
    parts += _axis(lens)
    return parts, lens.bottom + 66


def _lanes(window: _Window) -> Iterator[str]:
    for stream in window.timeline.streams:
        y = window.y(stream)
        bottom = y + window.height(stream)
        yield label(LEFT - 10, (y + bottom) / 2 + 4, stream, class_="end")
        yield _line(LEFT, bottom, LEFT + PLOT, bottom, "axis")


def _bands(window: _Window) -> Iterator[str]:
    """Every other layer on grey, each with its number where there is room."""
    each = PLOT if window.magnified else PLOT / len(window.timeline.layer_kinds)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * each >= 26)
    for layer in range(len(window.timeline.layer_kinds)):
        start, end = window.timeline.stretch(layer, layer)
        if end <= window.start or start >= window.end:
            continue
        left, right = window.x(start), window.x(end)
        if layer % 2:
            height = window.bottom - window.top + 18
            yield element(
                "rect", x=left, y=window.top - 18, width=right - left, height=height, class_="band"
            )
        if layer % step == 0:
            name = f"layer {layer}" if window.magnified else str(layer)
            yield label(left + 2, window.top - 5, name, class_="small")


def _runs(window: _Window) -> Iterator[str]:
    """All launches; neighbours of one layer and group, or too narrow to be seen, in one box."""
    for stream in window.timeline.streams:
        run: list[Launch] = []
        for launch in window.timeline.launches:
            if launch.stream != stream:
                continue
            if run and not _joins(window, run, launch):
                yield _run(window, run)
                run = []
            run.append(launch)
        yield _run(window, run)


def _joins(window: _Window, run: Sequence[Launch], launch: Launch) -> bool:
    last = run[-1]
    if window.x(launch.end) - window.x(run[0].start) < LEAST_BOX:
        return True
    touching = window.x(launch.start) - window.x(last.end) < LEAST_BOX / 4
    return touching and (launch.layer, launch.group) == (last.layer, last.group)


def _run(window: _Window, run: Sequence[Launch]) -> str:
    times: dict[str, float] = {}
    for launch in run:
        times[launch.group] = times.get(launch.group, 0.0) + launch.end - launch.start
    most = max(times, key=times.__getitem__)
    layers = dict.fromkeys(launch.layer for launch in run if launch.layer is not None)
    where = (
        f"layer {'-'.join(dict.fromkeys((str(min(layers)), str(max(layers)))))}: " if layers else ""
    )
    ops = ", ".join(dict.fromkeys(launch.op for launch in run))
    text = f"{where}{ops}, {duration(run[-1].end - run[0].start)}"
    left, right = window.x(run[0].start), window.x(run[-1].end)
    return element(
        "rect",
        title(text),
        x=left,
        y=window.y(run[0].stream),
        width=max(right - left, 0.3),
        height=NARROW,
        class_=_style(most),
    )


def _box(window: _Window, launch: Launch) -> str:
    left, right = window.x(launch.start), window.x(launch.end)
    box = element(
        "rect",
        x=left,
        y=window.y(launch.stream),
        width=max(right - left, 0.5),
        height=window.height(launch.stream),
        class_=f"mag {_style(launch.group)}",
    )
    name = launch.op
    if launch.layer is not None and launch.layer != launch.during:
        name += f" for layer {launch.layer}"
    shown = _name(name, window.y(launch.stream), left, right, launch.group)
    return element("g", title(_hover(window.timeline, launch)) + box + shown)


def _name(name: str, top: float, left: float, right: float, group: str) -> str:
    """A name in a magnified box: across if that fits, else upwards, else not at all; on white where it is hatched."""
    x, y, length = (left + right) / 2, top + WIDE / 2, CHARACTER * len(name)
    across, upwards = right - left >= length + 4, right - left >= 13 and length <= WIDE
    if not (across or upwards):
        return ""
    turn = {} if across else {"transform": f"rotate(-90 {x:.1f} {y:.1f})"}
    dark = FILLS.get(group, "").startswith("#1")
    text = label(x, y + 4, name, class_="small mid light" if dark else "small mid", **turn)
    if FILLS.get(group, WAITING).startswith("#"):
        return text
    plate = element(
        "rect", x=x - length / 2, y=y - 7, width=length, height=14, fill="white", **turn
    )
    return plate + text


def _style(group: str) -> str:
    return f"g{tuple(GROUPS).index(group)}"


def _hover(timeline: Timeline, launch: Launch) -> str:
    where = f"layer {launch.layer}" if launch.layer is not None else "outside the layers"
    lines = [f"{launch.op} ({where}{', ' if launch.place else ''}{launch.place})"]
    lines.append(f"kernel {launch.kernel}, stream {launch.stream}")
    lines.append(f"from {duration(launch.start)}, for {duration(launch.end - launch.start)}")
    load = launch.load
    if load.device_bytes:
        lines.append(f"reads {size(round(load.device_bytes))} of device memory")
    if load.flop:
        lines.append(f"{load.flop / 1e9:,.3g} GFLOP")
    if load.link_bytes:
        lines.append(f"copies {size(round(load.link_bytes))} over the link (expected)")
    for arrow in launch.arrows:
        lines.append(f"waits for {_source(timeline, arrow)}, done at {duration(arrow.at)}")
    if launch.start > launch.free and launch.arrows:
        lines.append(
            f"so it starts {duration(launch.start - launch.free)} later than its stream allows"
        )
    return "\n".join(lines)


def _source(timeline: Timeline, arrow: Arrow) -> str:
    source = timeline.launches[arrow.source]
    layer = "" if source.layer is None else f" of layer {source.layer}"
    return f"{source.op}{layer} on {source.stream}"


def _waits(window: _Window) -> Iterator[str]:
    """Where `main` has nothing to do because of another stream."""
    for launch in window.inside():
        if launch.stream != "main" or launch.start <= launch.free or launch.end > window.end:
            continue
        left, right = window.x(launch.free), window.x(launch.start)
        if right - left < LEAST_BOX:
            continue
        waited = f"waits {duration(launch.start - launch.free)}"
        box = element(
            "rect",
            title(f"main {waited} for {_source(window.timeline, latest(launch))}"),
            x=left,
            y=window.y("main"),
            width=right - left,
            height=window.height("main"),
            fill=WAITING,
            class_="mag",
        )
        yield box + _name(waited, window.y("main"), left, right, group="")


def _arrows(window: _Window) -> Iterator[str]:
    """From where an event happened to the launch that waited for it, between device streams."""
    streams = window.timeline.streams
    for launch in window.inside():
        if launch.start < window.start:
            continue
        for arrow in launch.arrows:
            source = window.timeline.launches[arrow.source]
            if source.stream == HOST or source.stream == launch.stream:
                continue
            down = streams.index(source.stream) < streams.index(launch.stream)
            y = window.y(source.stream) + (window.height(source.stream) if down else 0)
            onto = window.y(launch.stream) + (0 if down else window.height(launch.stream))
            waited = launch.start > launch.free and arrow.at >= launch.start
            style, head = ("event", "head") if waited else ("idle", "idlehead")
            yield _line(window.x(arrow.at), y, window.x(launch.start), onto, style, f"url(#{head})")


def _host_note(window: _Window) -> Iterator[str]:
    """The host's launches of these layers lie far to the left; say how far."""
    timeline = window.timeline
    if HOST not in timeline.streams:
        return
    ahead = [
        launch.start - arrow.at
        for launch in window.inside()
        for arrow in launch.arrows
        if timeline.launches[arrow.source].stream == HOST
    ]
    text = (
        f"every launch here was enqueued at least {duration(min(ahead))} before it starts"
        if ahead
        else "the whole step is one graph, enqueued before its first launch"
    )
    yield label(LEFT + 6, window.y(HOST) + NARROW / 2 + 4, text)


def _magnifier(whole: _Window, lens: _Window) -> Iterator[str]:
    left, right = whole.x(lens.start), whole.x(lens.end)
    top, under, over = whole.top - 18, whole.bottom, lens.top - 18
    points = (
        f"{left:.1f},{top:.1f} {right:.1f},{top:.1f} {right:.1f},{under:.1f} "
        f"{LEFT + PLOT},{over:.1f} {LEFT},{over:.1f} {left:.1f},{under:.1f}"
    )
    yield element("polygon", points=points, class_="lens")


def _axis(window: _Window) -> Iterator[str]:
    length = window.end - window.start
    unit, factor = ("us", 1e6) if length < 2e-3 else ("ms", 1e3) if length < 2 else ("s", 1.0)
    span = length * factor
    step = next(
        mantissa * 10.0**exponent
        for exponent in range(-6, 7)
        for mantissa in (1, 2, 5)
        if span / (mantissa * 10.0**exponent) <= 14
    )
    y = window.bottom + 6
    yield _line(LEFT, y, LEFT + PLOT, y, "axis")
    tick = -(-window.start * factor // step) * step
    while tick <= window.end * factor:
        x = window.x(tick / factor)
        yield _line(x, y, x, y + 5, "axis")
        yield label(x, y + 18, f"{tick:,.10g}", class_="small mid")
        tick += step
    yield label(LEFT - 10, y + 18, f"time, {unit}", class_="small end")


def _line(x1: float, y1: float, x2: float, y2: float, style: str, head: str = "") -> str:
    marker = {"marker_end": head} if head else {}
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style, **marker)
