"""`ft bench`: where it cannot measure, and what it shows."""

import json
import logging
import re

import pytest

from firmtoken.runtime.bench.http import BenchFailed
from firmtoken.runtime.bench.rows import row
from firmtoken.runtime.cli.bench import ToldLines, Wish, bench, server, show, watch_memory
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.progress import LineProgress
from firmtoken.runtime.cli.this_gpu import GIB
from firmtoken.runtime.memory.gpus import FoundGpu


def test_a_context_that_the_requests_do_not_fit_in_is_refused() -> None:
    with pytest.raises(
        Failure, match=r"the effective context is 300 tokens, .* take 320"
    ) as failure:
        bench(
            "tiny-cpu",
            ("serving.context=300",),
            Wish(runs=1, temperature=0.0, top_p=1.0, form="table"),
            from_hub=lambda plan: plan,
        )
    assert failure.value.exit_code == 3
    assert failure.value.hint == "`--set serving.context=320`"


def test_a_server_that_does_not_start_is_quoted() -> None:
    with (
        pytest.raises(BenchFailed) as failure,
        server("tiny-cpu", ("server.host=256.256.256.256",), print),
    ):
        pass
    assert re.match(
        r"`ft run` ended with exit code 1 before it was ready:\ncannot listen on `256",
        str(failure.value),
    )


def test_what_a_server_does_before_it_is_ready_is_told() -> None:
    told: list[str] = []
    with server("tiny-cpu", (), told.append) as served:
        assert served.address.startswith("http://127.0.0.1:")
    assert "loading: warm-up" in told
    assert told[0].startswith("engine process ")


def test_what_an_engine_says_is_told_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal a line takes the place of the one before, but for what is wrong."""
    log = logging.Logger("engine")
    log.addHandler(ToldLines(LineProgress(on_terminal=True)))
    log.info("loading: %s", "weights")
    log.error("the engine ended")
    clear = "\r\033[K"
    assert capsys.readouterr().err == f"{clear}loading: weights{clear}the engine ended\n"


def test_a_server_is_held_to_the_memory_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to what others hold; and the GPU stays the one that had the most room before."""
    free = [[100 * GIB, 90 * GIB], [76 * GIB, 90 * GIB]]
    monkeypatch.setattr("firmtoken.runtime.cli.bench.find_gpus", lambda: gpus(free.pop(0)))
    plan = compile_argument("h200-qwen", ("hardware.gpu.memory=24GiB",)).plan
    [measured] = watch_memory(plan)("at ready")
    assert (measured.name, measured.value, measured.unit) == ("device memory at ready", 24.0, "GiB")
    assert measured.estimate == plan.memory.device.total / GIB


def gpus(free: list[int]) -> tuple[FoundGpu, ...]:
    return tuple(
        FoundGpu(
            index=index,
            name="NVIDIA H200",
            uuid=f"GPU-{index}",
            capability="9.0",
            driver="580.159.04",
            total=139 * GIB,
            free=bytes_free,
            holders=(),
        )
        for index, bytes_free in enumerate(free)
    )


def test_a_cpu_lends_no_device_memory() -> None:
    assert watch_memory(compile_argument("tiny-cpu", ()).plan)("at ready") == []


def test_the_table_has_a_line_for_each_row_and_json_has_all_that_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiled = compile_argument("tiny-cpu", ())
    rows = [
        row("HTTP decode, 1 stream", "tok/s", [99.0, 101.0, 103.0], estimate=173.06),
        row("start to ready", "s", [3.1], note="warm"),
    ]
    show(compiled, rows, Wish(runs=3, temperature=1.0, top_p=0.95, form="table"))
    _, decode, ready = capsys.readouterr().out.splitlines()
    assert " ".join(decode.split()) == "HTTP decode, 1 stream 101.000 tok/s estimated 173.1"
    assert " ".join(ready.split()) == "start to ready 3.100 s (warm)"
    show(compiled, rows, Wish(runs=3, temperature=1.0, top_p=0.95, form="json"))
    told = json.loads(capsys.readouterr().out)
    assert (told["temperature"], told["top_p"]) == (1.0, 0.95)
    assert told["rows"][0]["runs"] == [99.0, 101.0, 103.0]
