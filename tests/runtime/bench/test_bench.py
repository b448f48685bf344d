"""`ft bench` where it cannot measure."""

import re

import pytest

from firmtoken.runtime.bench.http import BenchFailed
from firmtoken.runtime.cli.bench import bench, server
from firmtoken.runtime.cli.failure import Failure


def test_a_context_that_the_requests_do_not_fit_in_is_refused() -> None:
    with pytest.raises(
        Failure, match=r"the effective context is 300 tokens, .* take 320"
    ) as failure:
        bench("tiny-cpu", ("serving.context=300",), runs=1, form="table")
    assert failure.value.exit_code == 3
    assert failure.value.hint == "`--set serving.context=320`"


def test_a_server_that_does_not_start_is_quoted() -> None:
    with (
        pytest.raises(BenchFailed) as failure,
        server("tiny-cpu", ("server.host=256.256.256.256",)),
    ):
        pass
    assert re.match(
        r"`ft run` ended with exit code 1 before it was ready:\ncannot listen on `256",
        str(failure.value),
    )
