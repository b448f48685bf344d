"""Streams of the CPU device: order within one, events between them, failures that reach whoever waits."""

import threading
from functools import partial

import pytest

from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.streams import StreamFailed, Streams


def test_a_brief_launch_runs_here_if_it_is_next_and_in_order_if_not() -> None:
    streams = Streams(("main", "link"), Position())
    ran: list[tuple[str, bool]] = []
    here = threading.get_ident()

    def note(what: str) -> None:
        ran.append((what, threading.get_ident() == here))

    copied = Value("copied")
    streams.issue("link", (), partial(note, "first"), (copied,), brief=True, at=0)
    assert ran == [("first", True)]
    gate = threading.Event()
    streams.issue("link", (), gate.wait, (), at=0)
    streams.issue("link", (), partial(note, "second"), (copied,), brief=True, at=0)
    assert len(ran) == 1
    gate.set()
    streams.wait((copied,))
    assert ran[1:] == [("second", False)]
    streams.close()


def test_a_failure_of_a_brief_launch_reaches_whoever_waits_for_it() -> None:
    streams = Streams(("main", "link"), Position())

    def fail() -> None:
        raise ValueError("broken copy")

    streams.issue("link", (), fail, (Value("copied"),), brief=True, at=0)
    with pytest.raises(StreamFailed, match="`link` failed"):
        streams.wait((Value("copied"),))
    streams.close()


def test_a_side_stream_keeps_its_order_and_waits_for_events() -> None:
    streams = Streams(("main", "link", "other"), Position())
    done: list[str] = []
    gate = threading.Event()
    copied = Value("copied", (1,))
    streams.issue("link", (), gate.wait, (), at=0)
    streams.issue("link", (), lambda: done.append("first"), (copied,), at=0)
    streams.issue("other", (copied,), lambda: done.append("second"), (), at=0)
    streams.wait((Value("never"),))  # never recorded: orders nothing
    assert done == []
    gate.set()
    streams.wait((copied,))
    assert done[0] == "first"
    streams.drain()
    assert done == ["first", "second"]
    streams.close()


def test_a_failure_on_a_side_stream_reaches_whoever_waits_for_it() -> None:
    streams = Streams(("main", "link"), Position())

    def fail() -> None:
        raise ValueError("broken copy")

    streams.issue("link", (), fail, (Value("copied"),), at=0)
    with pytest.raises(StreamFailed, match="`link` failed") as caught:
        streams.wait((Value("copied"),))
    assert isinstance(caught.value.__cause__, ValueError)
    streams.close()
