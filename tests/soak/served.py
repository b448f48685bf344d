"""`ft run` in a process of its own, and what /proc says of it and of its engine. Knows no HTTP."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY_S = 120
STOP_S = 75
"""Longer than the server's own bound for open requests."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one process holds at this moment."""

    pid: int
    descriptors: int
    threads: int
    rss_mib: float
    anonymous_mib: float
    """Without the shared segments and mapped files."""
    cpu_s: float


class ServedProcess:
    """A running server; `stop` must be called."""

    def __init__(
        self, profile: str, overrides: Sequence[str], folder: Path, *, debug: bool
    ) -> None:
        command = [sys.executable, "-P", "-m", "firmtoken.runtime.cli.run", "run", profile]
        command += ["--port", "0", *(["--debug"] if debug else [])]
        for override in overrides:
            command += ["--set", override]
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    "PYTHONPATH": str(ROOT / ".src"),
                    "XDG_STATE_HOME": str(folder / "state"),
                    "OMP_WAIT_POLICY": "PASSIVE",
                },
            )
        self.pid = self._process.pid
        self.address = self._wait_ready()

    def _wait_ready(self) -> str:
        assert self._process.stdout is not None
        patience = threading.Timer(READY_S, self._process.kill)
        patience.start()
        try:
            for line in self._process.stdout:
                if line.startswith("ready"):
                    return line.split()[1]
        finally:
            patience.cancel()
        raise RuntimeError(f"the server never became ready: {self.last_words()}")

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def engine_pid(self) -> int | None:
        """The child that computes; None while there is none."""
        for pid in children(self.pid):
            if "firmtoken.runtime.engine.spawned" in command_line(pid):
                return pid
        return None

    def usage(self) -> tuple[Usage, Usage]:
        """Of the server and of its engine."""
        engine = self.engine_pid()
        assert engine is not None, "the engine is gone"
        return usage_of(self.pid), usage_of(engine)

    def kill_engine(self) -> int | None:
        """SIGKILL to the engine; its process id, or None if there was none to kill."""
        pid = self.engine_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """SIGTERM; the exit code. One that stays is killed, which is -9."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def complaints(self) -> list[str]:
        """Lines of the log that no healthy server writes."""
        signs = (" ERROR ", "Traceback", "never retrieved", "was never awaited", "Error:")
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if any(sign in line for sign in signs)]

    def last_words(self) -> str:
        """The end of the log."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])


def usage_of(pid: int) -> Usage:
    """Read from /proc; raises `FileNotFoundError` for a process that is gone."""
    process = Path("/proc") / str(pid)
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return Usage(
        pid=pid,
        descriptors=len(list((process / "fd").iterdir())),
        threads=int(status["Threads"]),
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        anonymous_mib=int(status["RssAnon"].split()[0]) / 1024,
        cpu_s=cpu_seconds(pid),
    )


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads."""
    # The second field is the name in brackets, which may hold blanks.
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def cpu_share(pids: Sequence[int], seconds: float) -> list[float]:
    """Cores that each process uses over the next `seconds`."""
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    return [(cpu_seconds(pid) - start) / seconds for pid, start in zip(pids, before, strict=True)]


def children(pid: int) -> list[int]:
    """Direct children, whichever thread started them."""
    found: list[int] = []
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def command_line(pid: int) -> str:
    """Its arguments, blank for one that is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""
