"""Reports: what an engine was doing when it stalled or died, or now; one folder each, newest kept."""

import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from firmtoken.schema.regular_file import read_regular

SCHEMA = "firmtoken.report/1"
NUM_KEPT = 20
REPORT_FILE = "report.json"
END_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ-(stall|death)-\d+")
"""Folder of an engine's end; it begins with the time."""


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one stream is at."""

    name: str
    state: str
    """`idle`, `waiting` (for an event) or `running`."""
    program: str
    launch: int
    """Index in the unrolled program: `ft plan PROFILE --unroll PROGRAM` prints it."""
    op: str | None
    kernel: str | None
    layer: int | None
    text: str
    """For people."""
    thread: int
    cpu_share: float | None
    """Of one core, while the report was made."""


class PositionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine is in its plan."""

    due_s: float
    overdue_s: float
    units: int
    streams: tuple[StreamReport, ...]
    culprit: str | None
    """The launch that does not end, if one runs."""


class ThreadReport(msgspec.Struct, frozen=True, kw_only=True):
    """A thread of the engine's process."""

    id: int
    name: str
    state: str
    """The kernel's letter: R runs, S sleeps, D waits for a device."""
    cpu_share: float
    stream: str | None


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a program."""

    run: int
    program: str
    rows: int
    num_seqs: int
    begun_s: float
    """Before the report."""
    took_ms: float | None
    """None: it did not end."""


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that the engine held."""

    running: int
    waiting: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known."""

    schema: str = SCHEMA
    kind: str
    """`stall`, `death` or `dump`."""
    cause: str
    at: str
    """ISO 8601, UTC."""
    version: str
    profile: str
    fingerprint: str
    engine_pid: int
    uptime_s: float | None
    """Since ready."""
    state: str
    outcome: str
    """What was done about it."""
    position: PositionReport
    requests: Requests
    stats: dict[str, object] | None
    threads: tuple[ThreadReport, ...]
    steps: tuple[StepReport, ...]
    environment: dict[str, str]
    """Variables that alter torch or CUDA and are not the plan's (D17)."""
    log: tuple[str, ...]
    stacks: str
    exit: str | None
    output: tuple[str, ...]
    """What the engine's process printed last."""


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where this program keeps what it writes about itself: XDG_STATE_HOME, or ~/.local/state.

    Raises `RuntimeError` for a user without a home.
    """
    base = environ.get("XDG_STATE_HOME")
    # The XDG standard: a path that is not absolute does not count.
    if base and Path(base).is_absolute():
        return Path(base) / "firmtoken"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "state" / "firmtoken"


def reports_folder(environ: Mapping[str, str]) -> Path:
    """Where reports are; raises `RuntimeError` for a user without a home."""
    return state_folder(environ) / "reports"


def write_report(folder: Path, report: Report, plan_json: bytes) -> Path:
    """Write one, forget the oldest; raises `OSError`."""
    stamp = report.at.replace(":", "-").partition(".")[0].removesuffix("+00-00")
    place = folder / f"{stamp}Z-{report.kind}-{report.engine_pid}"
    _forget_old(folder)  # first: the disk may be full of them
    place.mkdir(parents=True, exist_ok=True)
    (place / "plan.json").write_bytes(plan_json)
    (place / "stacks.txt").write_text(report.stacks, encoding="utf-8")
    (place / "log.txt").write_text("".join(f"{line}\n" for line in report.log), encoding="utf-8")
    # Last, and whole or not at all: a folder without it is no report.
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2)
    part = place / f"{REPORT_FILE}.part"
    part.write_bytes(encoded)
    part.replace(place / REPORT_FILE)
    return place


def read_report(place: Path) -> Report:
    """The report in a folder; raises `OSError` or `msgspec.MsgspecError`."""
    return msgspec.json.decode(read_regular(place / REPORT_FILE), type=Report)


def ends(folder: Path) -> list[Path]:
    """Folders of engines' ends, newest first: a name begins with the time. What is not named like one is not ours.

    One that was not written whole has no report to read.
    """
    if not folder.exists():
        return []
    named = (place for place in folder.iterdir() if END_NAME.fullmatch(place.name))
    return sorted(named, key=lambda place: place.name, reverse=True)


def now_text() -> str:
    """Now, as reports say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _forget_old(folder: Path) -> None:
    for place in ends(folder)[NUM_KEPT - 1 :]:
        shutil.rmtree(place, ignore_errors=True)
