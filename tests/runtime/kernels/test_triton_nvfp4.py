"""The NVFP4 kernel for GPUs computes what the format says, as far as that can be seen without one."""

import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.cli.console import SOURCE

SCRIPT = Path(__file__).with_name("interpreted_nvfp4.py")


def test_it_is_right_under_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "TRITON_INTERPRET": "1"},
    )
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
