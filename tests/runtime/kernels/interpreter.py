"""Runs a script under Triton's interpreter, which must be chosen before Triton is imported: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.cli.console import SOURCE

LIMIT_S = 200.0
"""Of one process: a program that waits for ever must not hold up the tests."""


def interpret(script: str, *cases: str) -> None:
    """Run cases of a script of this folder, which fails by raising."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), *cases],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
