"""What an engine prints: kept short, and only what is a cause is told as one."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable

import pytest

from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.life import Ending, EngineSpec
from firmtoken.runtime.server.process import LONGEST_LINE_BYTES

LOG = logging.getLogger("firmtoken.test")
EngineSpecs = Callable[..., EngineSpec]


def death_of(spec: EngineSpec) -> Ending:
    async def main() -> Ending:
        client = EngineClient(spec, log=LOG, clock=time.monotonic)
        await client.start()
        await asyncio.wait_for(client.wait_ended(), 10)
        await client.stop(grace_s=0.3)
        assert client.death is not None
        return client.death

    return asyncio.run(main())


@pytest.mark.parametrize("end", ["\\n", ""])
def test_a_last_line_of_a_megabyte_is_no_message_to_clients(
    engine_spec: EngineSpecs, end: str
) -> None:
    code = f"import sys; sys.stdout.write('y' * 2**20 + '{end}'); sys.stdout.flush(); sys.exit(3)"
    death = death_of(engine_spec({}, command=(sys.executable, "-c", code)))
    assert death.cause.startswith("the engine process ended with exit code 3: yyyy")
    assert len(death.cause) < LONGEST_LINE_BYTES + 100


def test_a_list_of_modules_is_no_cause_of_a_fatal_signal(engine_spec: EngineSpecs) -> None:
    code = "import faulthandler, msgspec, os; faulthandler.enable(); os.kill(os.getpid(), 11)"
    command = (sys.executable, "-c", code)
    death = death_of(engine_spec({}, command=command, environment=dict(os.environ)))
    assert death.cause == "the engine process was killed by SIGSEGV"
