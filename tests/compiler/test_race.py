"""The one rule of D5, on lists small enough to check by eye (prototype.md 1.2 and 1.6)."""

from dataclasses import replace

from firmtoken.compiler.happens_before import Launch
from firmtoken.compiler.program import Value
from firmtoken.compiler.race import Layout, Place, check_races


def v(text: str) -> Value:
    name, _, index = text.partition("[")
    return Value(name, (int(index.rstrip("]")),) if index else ())


def launch(text: str) -> Launch:
    """`stream label: reads > writes | waits > records`."""
    head, _, rest = text.partition(":")
    stream, label = head.split()
    values, _, events = rest.partition("|")
    reads, _, writes = values.partition(">")
    waits, _, records = events.partition(">")
    sides = [tuple(v(word) for word in side.split()) for side in (reads, writes, waits, records)]
    return Launch(label, stream, *sides)


PLACES = {
    "x": Place("arena", 0, 64),
    "y": Place("arena", 64, 128),
    "z": Place("arena", 0, 32),
    "table": Place("tables", 0, 8),
    "map": Place("tables", 8, 16),
    "staged[0]": Place("staging", 0, 10),
    "staged[1]": Place("staging", 10, 20),
    "staged[2]": Place("staging", 0, 10),
}
LAYOUT = Layout(
    place=lambda value: PLACES[str(value)],
    persistent=lambda value: value.name == "table",
    view_of=lambda value: (Value("table"),) if value.name == "map" else (),
)


def faults(*lines: str) -> tuple[str, ...]:
    return check_races([launch(line) for line in lines], LAYOUT)


RING = (
    "main resolve0: > map | > resolved[0]",
    "link fetch0: > staged[0] | resolved[0] > fetched[0]",
    "main resolve1: > map | > resolved[1]",
    "link fetch1: > staged[1] | resolved[1] > fetched[1]",
    "main moe0: staged[0] > | fetched[0] >",
    "main resolve2: > map | > resolved[2]",
    "link fetch2: > staged[2] | resolved[2] > fetched[2]",
    "main moe1: staged[1] > | fetched[1] >",
    "main moe2: staged[2] > | fetched[2] >",
)


def test_a_double_buffer_with_its_events_is_free_of_races() -> None:
    assert faults(*RING) == ()


def test_a_gemm_that_does_not_wait_for_its_copy_reads_too_early() -> None:
    broken = [
        line.replace("moe1: staged[1] > | fetched[1] >", "moe1: staged[1] > | >") for line in RING
    ]
    assert faults(*broken) == ("moe1 reads `staged[1]` too early: fetch1 may still write it",)


def test_a_copy_that_does_not_wait_for_the_gemm_overwrites_what_it_reads() -> None:
    broken = [line.replace("| resolved[2] >", "| >") for line in RING]
    assert faults(*broken)[0] == "fetch2 writes `staged[2]` while moe0 may still read `staged[0]`"


def test_one_half_instead_of_two_is_clobbered() -> None:
    places = {**PLACES, "staged[1]": PLACES["staged[0]"]}
    layout = replace(LAYOUT, place=lambda value: places[str(value)])
    found = check_races([launch(line) for line in RING], layout)
    assert "moe0 reads `staged[0]`, its bytes hold `staged[1]` of fetch1" in found


def test_a_wait_for_a_never_recorded_event_orders_nothing() -> None:
    assert faults("link copy: > x | >", "main use: x > | nowhere >") == (
        "use reads `x` too early: copy may still write it",
    )


def test_a_partial_overlap_clobbers() -> None:
    assert faults("main a: > x", "main b: > z", "main c: x >") == (
        "c reads `x`, its bytes hold `z` of b",
    )


def test_an_output_over_another_input_is_refused_unless_the_card_lists_the_pair() -> None:
    write, op = launch("main a: > x"), launch("main b: x > z")
    assert check_races([write, op], LAYOUT) == ("b: output `z` shares bytes with input `x`",)
    allowed = replace(op, in_place=frozenset({(Value("x"), Value("z"))}))
    assert check_races([write, allowed], LAYOUT) == ()


def test_a_view_is_void_once_its_source_changes() -> None:
    assert faults("main resolve: table > map", "main admit: table > table", "main moe: map >") == (
        "moe reads `map`, a stale view: `table` changed since",
    )


def test_what_was_never_written_cannot_be_read() -> None:
    assert faults("main use: y >") == ("use reads `y`, its bytes hold nothing yet",)


def test_rows_of_an_earlier_tile_may_not_be_overwritten_before_the_next_adds_its_own() -> None:
    first, other, second, read = map(
        launch, ("main t0: > x", "main a: > z", "main t1: > x", "main b: x >")
    )
    second = replace(second, continues=True)
    assert check_races([first, second, read], LAYOUT) == ()
    assert check_races([first, other, second, read], LAYOUT) == (
        "t1 reads `x`, its bytes hold `z` of a",
    )
    own = replace(LAYOUT, one_tile=lambda value: value.name == "x")
    assert check_races([first, other, second, read], own) == ()
