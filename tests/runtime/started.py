"""A server in a process of its own, started by a test: what it says, and that it is gone afterwards."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

ENGINE = r"(?<=engine process )\d+"


class Started:
    """`ft run` of some kind; `close` must be called."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.popen = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            preexec_fn=before,
        )
        self.output: list[str] = []
        self.errors: list[str] = []
        assert self.popen.stdout is not None and self.popen.stderr is not None
        self._readers = [
            threading.Thread(target=keep, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.popen.stdout, self.output),
                (self.popen.stderr, self.errors),
            )
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, lines: list[str], pattern: str, within_s: float = 30) -> str:
        """The first match in a line that was said or will be, unless the process ends without it."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            is_over = not any(reader.is_alive() for reader in self._readers)
            for line in list(lines):
                if found := re.search(pattern, line):
                    return found[0]
            if is_over:
                break
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in {self.output + self.errors}")

    def ready(self, within_s: float = 30) -> str:
        """Its address."""
        return self.wait_for(self.output, r"(?<=^ready )\S+", within_s)

    def engine_pid(self) -> int:
        """Of its newest engine."""
        self.wait_for(self.errors, ENGINE)
        return [int(found[0]) for line in list(self.errors) if (found := re.search(ENGINE, line))][
            -1
        ]

    def signal(self, signum: int) -> None:
        self.popen.send_signal(signum)

    def exit_code(self, seconds: float = 20) -> int:
        code = self.popen.wait(seconds)
        for reader in self._readers:
            reader.join(5)
        assert "Traceback" not in "".join(self.errors)
        return code

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for reader in self._readers:
            reader.join(5)


def keep(stream: IO[str], lines: list[str]) -> None:
    """Until its end, line by line."""
    with stream:
        lines.extend(iter(stream.readline, ""))
