"""A report for people: the five lines of `ft why`, the page of `ft dump`; plain text, no colour."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from firmtoken.compiler.tables import WIDTH, columns, cut, paragraph
from firmtoken.runtime.server.report import PositionReport, Report, StreamReport

VERBS = {"stall": "stalled", "death": "died"}
MOST_STEPS = 8
MOST_LOG_LINES = 12
MOST_OUTPUT_LINES = 8
MOST_STACK_LINES = 80


def printable(text: str) -> str:
    """On one line, with `?` for what a terminal would obey: reports hold text of strangers."""
    return _visible(" ".join(text.split()))


def five_lines(report: Report, folder: Path) -> str:
    """When, why, where, what was done, and where to read on."""
    ready = "before it was ready"
    if report.uptime_s is not None:
        ready = f"{duration(report.uptime_s)} after it was ready"
    verb = VERBS.get(report.kind, report.kind)
    return "\n".join(
        printable(line)
        for line in (
            f"when: {moment(report.at)}, the engine of `{report.profile}` {verb} {ready}",
            f"cause: {report.cause}",
            f"where: {_where(report.position)}",
            f"then: requests {_requests(report)}: {report.outcome}",
            f"report: {folder}",
        )
    )


def page(report: Report) -> str:
    """All of it that people read, within 100 columns; stacks last."""
    blocks = (
        _heading(report),
        _streams(report),
        _threads(report),
        _steps(report),
        _counters(report),
        _lines("foreign variables", [f"{k}={v}" for k, v in report.environment.items()], None),
        _lines("output of the engine", report.output, MOST_OUTPUT_LINES),
        _lines("log", report.log, MOST_LOG_LINES),
        _stacks(report.stacks),
    )
    return "\n\n".join("\n".join(cut(line) for line in block) for block in blocks if block)


def moment(at: str) -> str:
    """`2026-12-01 02:19:33 UTC`; as it was written if it is no time."""
    try:
        return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return at


def duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `12 min 3 s`, `5 h 2 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes == 0:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min {whole % 60} s"
    if days == 0:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def _where(position: PositionReport) -> str:
    stream = _culprit(position)
    if stream is None:
        idle = position.due_s == 0
        return ("no op was running" if idle else "between two launches") + _overdue(position)
    layer = "" if stream.layer is None else f" of layer {stream.layer}"
    return (
        f"op `{stream.op}`{layer}, stream `{stream.name}`, program `{stream.program}`,"
        f" launch {stream.launch}{_overdue(position)}"
    )


def _culprit(position: PositionReport) -> StreamReport | None:
    """The stream of the launch that is named, among those that say the same the one that runs."""
    named = [
        stream
        for stream in position.streams
        if stream.op is not None and stream.text == position.culprit
    ]
    return max(named, key=lambda stream: stream.state == "running", default=None)


def _overdue(position: PositionReport) -> str:
    if position.overdue_s <= 0:
        return ""
    return f", {duration(position.overdue_s)} over its {duration(position.due_s)}"


def _requests(report: Report) -> str:
    held = report.requests
    return f"{held.running} running, {held.waiting} waiting"


def _heading(report: Report) -> list[str]:
    ready = "not ready yet" if report.uptime_s is None else f"ready for {duration(report.uptime_s)}"
    rows = [
        ("plan", f"{report.fingerprint[:12]}, firmtoken {report.version}"),
        ("engine", f"process {report.engine_pid}, {report.state}, {ready}"),
        ("cause", report.cause),
        ("outcome", report.outcome),
        ("requests", _requests(report)),
        ("at", _where(report.position)),
    ]
    if report.exit is not None:
        rows.append(("exit", report.exit))
    lines = [f"{report.kind} of {printable(report.profile)}, {printable(moment(report.at))}"]
    for name, text in rows:
        lines += paragraph(printable(text), indent=" " * 12, first=f"  {name:<10}")
    return lines


def _streams(report: Report) -> list[str]:
    rows = [
        (
            stream.name,
            stream.state,
            *_launch(stream),
            _share(stream.cpu_share),
            str(stream.thread),
        )
        for stream in report.position.streams
    ]
    titles = ("stream", "state", "program", "launch", "op", "kernel", "layer", "CPU", "thread")
    return _table(titles, rows, "<<<><<>>>")


def _launch(stream: StreamReport) -> tuple[str, ...]:
    """What it is at; an idle one still has the words of its last run."""
    if stream.state == "idle":
        return ("-",) * 5
    layer = "-" if stream.layer is None else str(stream.layer)
    op, kernel = stream.op or "-", stream.kernel or "-"
    return (stream.program, str(stream.launch), op, kernel, layer)


def _threads(report: Report) -> list[str]:
    rows = [
        (str(each.id), each.name, each.state, _share(each.cpu_share), each.stream or "-")
        for each in report.threads
    ]
    return _table(("thread", "name", "state", "CPU", "stream"), rows, "><<><")


def _steps(report: Report) -> list[str]:
    last = report.steps[-MOST_STEPS:]
    rows = [
        (
            str(step.run),
            step.program,
            str(step.rows),
            str(step.num_seqs),
            duration(step.begun_s),
            "does not end" if step.took_ms is None else f"{step.took_ms:.1f} ms",
        )
        for step in reversed(last)
    ]
    return _table(("run", "program", "rows", "requests", "begun, ago", "took"), rows, "><>>>>")


def _counters(report: Report) -> list[str]:
    if not report.stats:
        return []
    text = ", ".join(f"{name} {value}" for name, value in report.stats.items())
    return ["counters", *paragraph(printable(text), indent="  ")]


def _lines(title: str, lines: Sequence[str], most: int | None) -> list[str]:
    if not lines:
        return []
    shown = lines if most is None else lines[-most:]
    count = "" if len(shown) == len(lines) else f", the last {len(shown)} of {len(lines)} lines"
    return [f"{title}{count}", *(f"  {_visible(line)}" for line in shown)]


def _stacks(text: str) -> list[str]:
    lines = text.splitlines()
    if not lines:
        return []
    rest = len(lines) - MOST_STACK_LINES
    more = [f"  ... {rest} more lines: `--format json`"] if rest > 0 else []
    return ["stacks", *(f"  {_end(_visible(line))}" for line in lines[:MOST_STACK_LINES]), *more]


def _end(line: str) -> str:
    """The function stands at the end of a frame, a long path before it."""
    most = WIDTH - len("  ")
    return line if len(line) <= most else "..." + line[-(most - len("...")) :]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> list[str]:
    shown = [[printable(cell) for cell in row] for row in rows]
    return columns([titles, *shown], align) if shown else []


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text.expandtabs())


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
