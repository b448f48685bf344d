"""`ft` and Python, run to their end: what they print and the exit code that they leave."""

import os
import subprocess
import sys
from pathlib import Path

import firmtoken

SOURCE = Path(firmtoken.__file__).absolute().parent.parent
PATIENCE_S = 60


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A Python that finds the package from every folder: a relative path would mean another one in `cwd`."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def ft(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The console script; it never ends in a stack."""
    done = python("-m", "firmtoken.runtime.cli.run", *arguments, cwd=cwd)
    assert "Traceback" not in done.stderr
    return done
