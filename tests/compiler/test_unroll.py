"""Templates become flat lists exactly as D5 writes references."""

from dataclasses import replace

import pytest

from firmtoken.compiler.program import BlockOf, BoundStep, Loop, Program, Step, Value, When, Yield
from firmtoken.compiler.unroll import BadReference, bind, unroll


def step(op: str, **fields: object) -> Step:
    return Step(op=op, kernel="k", stream="main", rows="1", operands={}, **fields)  # type: ignore[arg-type]  # shorthand


def program(body: tuple[object, ...], **blocks: tuple[object, ...]) -> Program:
    return Program(
        captured=False,
        closed=True,
        sizes=(),
        bounds={"layers": 3, "chunks": 2, "tiles": 2},
        entry_waits=(),
        body=body,  # type: ignore[arg-type]  # shorthand
        blocks={name.replace("_", "."): block for name, block in blocks.items()},  # type: ignore[misc]  # shorthand
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("kv[l,1]", Value("kv", (5, 1))),
        ("staged[l+1]", Value("staged", (6,))),
        ("half[(l+1)%2]", Value("half", (0,))),
        ("half[l%2]", Value("half", (1,))),
        ("overflow", Value("overflow")),
        ("prefill.hid[0]", Value("prefill.hid", (0,))),
    ],
)
def test_a_reference_is_bound_by_its_loop_variables(text: str, value: Value) -> None:
    assert bind(text, {"l": 5}) == value


@pytest.mark.parametrize("text", ["kv[]", "kv[l*2]", "Kv", "kv[m]", "kv[l", "a b"])
def test_a_reference_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        bind(text, {"l": 0})


def test_loops_blocks_conditions_and_yields_unroll_in_issue_order() -> None:
    flat = unroll(
        program(
            (
                Loop(
                    loop="l",
                    count="layers",
                    body=(
                        When(when="l+1<layers", body=(step("resolve", reads=("table[l+1]",)),)),
                        Loop(
                            loop="c",
                            count="chunks",
                            body=(
                                BlockOf(block_of="kind", suffix=".mixer"),
                                Yield(program="decode"),
                            ),
                        ),
                    ),
                ),
            ),
            linear_mixer=(step("gdn"),),
            full_mixer=(step("attention"),),
        ),
        ("linear", "full"),
        chunks=2,
    )
    seen = [item.step.op if isinstance(item, BoundStep) else "yield" for item in flat]
    assert seen == [
        "resolve",
        "gdn",
        "yield",
        "gdn",
        "yield",
        "attention",
        "yield",
        "attention",
        "yield",
    ]
    assert isinstance(flat[0], BoundStep)
    assert flat[0].reads == (Value("table", (1,)),)


def test_conditions_compare_indices_with_bounds_numbers_and_indices() -> None:
    def when(condition: str) -> list[int]:
        body = (Loop(loop="w", count="waves", body=(When(when=condition, body=(step("fetch"),)),)),)
        waved = replace(program(body), bounds={"layers": 1, "chunks": 1, "tiles": 1, "waves": 4})
        return [item.at["w"] for item in unroll(waved, ("full",))]

    assert when("w==0") == [0]
    assert when("0<w") == [1, 2, 3]
    assert when("w+2<waves") == [0, 1]
    assert when("w+1==waves") == [3]
    for condition in ("w", "w<u", "w<=2", "w<shelves"):
        with pytest.raises(BadReference):
            when(condition)


def test_a_step_is_told_the_indices_that_it_names() -> None:
    body = (Loop(loop="w", count="waves", body=(step("resolve", indices={"wave": "w+2"}),)),)
    waved = replace(program(body), bounds={"layers": 1, "chunks": 1, "tiles": 1, "waves": 2})
    flat = unroll(waved, ("full",))
    assert [item.indices for item in flat if isinstance(item, BoundStep)] == [
        {"wave": 2},
        {"wave": 3},
    ]


def test_each_chunk_has_its_own_number_of_tiles() -> None:
    body = (
        Loop(loop="c", count="chunks", body=(Loop(loop="t", count="tiles", body=(step("gdn"),)),)),
    )
    flat = unroll(program(body), ("linear",), chunks=2, tiles=(3, 1))
    assert [item.at for item in flat] == [
        {"c": 0, "t": 0},
        {"c": 0, "t": 1},
        {"c": 0, "t": 2},
        {"c": 1, "t": 0},
    ]
