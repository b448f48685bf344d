"""What the log says while a model loads."""

from firmtoken.runtime.engine.messages import Progress
from firmtoken.runtime.server.load_lines import LoadLines

GB = 10**9


def weights(done: int, total: int = 20 * GB) -> Progress:
    return Progress(phase="weights", done=done, total=total)


def test_a_phase_is_said_at_once_then_each_second_with_its_rate() -> None:
    lines = LoadLines()
    said = [
        lines.line(weights(0), 100.0),
        lines.line(weights(1 * GB), 100.9),
        lines.line(weights(3 * GB), 101.5),
        lines.line(weights(4 * GB), 102.0),
        lines.line(weights(6 * GB), 102.5),
    ]
    assert said == [
        "loading: weights 0 %, 0.0 of 20.0 GB",
        None,
        "loading: weights 15 %, 3.0 of 20.0 GB, 2.0 GB/s",
        None,
        "loading: weights 30 %, 6.0 of 20.0 GB, 2.4 GB/s",
    ]


def test_another_phase_is_said_whenever_it_comes_and_has_a_rate_of_its_own() -> None:
    lines = LoadLines()
    lines.line(weights(0), 100.0)
    assert lines.line(Progress(phase="expert slots", done=0, total=0), 100.1) == (
        "loading: expert slots"
    )
    assert lines.line(weights(0, 10**7), 109.0) == "loading: weights 0 %, 0.0 of 10.0 MB"
    assert lines.line(weights(5 * 10**6, 10**7), 110.0) == (
        "loading: weights 50 %, 5.0 of 10.0 MB, 5.0 MB/s"
    )
