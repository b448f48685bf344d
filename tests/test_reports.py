"""Faults that users of other servers reported: each has a test here that names its row and would fail if we had it.

A row is one of the table of reports that this project began with; a test names it with `@pytest.mark.report(row, ...)`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

REPORTS = {
    # Admission, queueing, advertised context
    1: ("FreeToken#111", "a prompt beyond the pool is a 400 at once, and the boundary is the pool"),
    2: ("FreeToken#118", "the limit is the smaller of model and pool, and lowers `max_tokens` too"),
    6: ("sglang#39271", "every advertised length runs; a cancelled wait leaves a working queue"),
    7: ("vllm#56028", "a request alone never preempts itself for ever: it ends or is refused"),
    8: ("vllm#52530", "sentinel blocks are counted at start; only what can never fit is refused"),
    9: ("imp#1635", "a stream that was admitted is never cancelled for want of pages"),
    10: ("FreeToken#403", "a refusal names the field and the largest value that fits this machine"),
    11: ("FreeToken#448", "models route, health and admission read one context"),
    12: ("imp#1542", "models route and health route say the same number"),
    13: ("imp#1251", "a context below what was declared refuses to start, and a floor is said"),
    14: ("FreeToken#172", "a text computed again is cut like any other; a failure harms nobody"),
    15: ("FreeToken#473", "a route counts tokens with the template and tokenizer of serving"),
    16: ("ardanlabs/kronk#861", "an oversized prompt is a 400 before any stream opens"),
    17: ("sglang#30743", "a chunk without pages waits; nothing is allocated past the budget"),
    # Liveness, abort, supervision
    39: ("FreeToken#225", "all pending requests hear of a dead engine within seconds"),
    40: ("FreeToken#20", "the first cause is the last line printed and what health says"),
    41: ("FreeToken#222", "one abort a request, stream or not, within one step"),
    42: ("sglang#36333", "an abort is sent before the record of its request is dropped"),
    44: ("FreeToken#72", "no prompt length hangs, and SIGTERM always works"),
    45: ("FreeToken#169", "nothing is compiled or loaded while requests are served"),
    46: ("FreeToken#259", "ready means that a real forward pass of the served path has run"),
    47: ("FreeToken#269", "a tokenizer that cannot be loaded says why"),
    48: ("FreeToken#538", "the chunk is a field of the profile; a lost device ends the process"),
    50: ("vllm#39863", "health is false when no step completes while work is queued"),
    51: ("vllm#48966", "an engine that died leaves an exit code that is not 0"),
    52: ("sglang#36770", "without a slot for a snapshot caching is skipped and serving goes on"),
    # Numbers and cache correctness
    53: ("FreeToken#287", "a snapshot is the tree's own copy; a hit says what a cold run says"),
    54: ("vllm#54150", "gate and up keep a global scale each"),
    55: ("imp#1403", "a missing operand or kernel is refused, never skipped"),
    56: ("imp#1190", "each declared expert has data, or the checkpoint is refused"),
    57: ("MoE-Infinity#138", "compute waits for its expert: a miss changes time, never weights"),
    58: ("sglang#36531", "texts are right across the first page and chunk boundaries"),
    59: ("sglang#36497", "a selection of blocks has no buffer to overflow"),
    60: ("sglang#36497 (comment)", "a kernel is allowed on a chip after long contexts ran there"),
    61: ("FreeToken#291", "a copy that reports success has copied"),
    62: ("FreeToken#307", "temperature 0 gives one text, over an answer long enough for ties"),
    63: ("FreeToken#292 (comment)", "a kernel reads a view by its strides or refuses it"),
    64: ("FreeToken#385", "shards are cut by segment and compared with the plan"),
    66: ("vllm#53896 (comment)", "no parameter stays as it was before loading"),
    67: ("flashinfer#3398", "each kernel equals its reference at every size it is chosen for"),
    # Thoughts and tool calls
    68: ("FreeToken#497", "the prompt says whether an answer begins in a thought, no model's name"),
    69: ("FreeToken#201", "calls that may not be parallel end with the first, as `tool_calls`"),
    72: ("FreeToken#475", "a client's word on thinking holds beside tools"),
    73: ("FreeToken#2", "`reasoning_effort: none` is the template's switch, or a 400"),
    75: ("FreeToken#4", "an unfinished call does not run into the next one"),
    76: ("sglang#35564", "any split of a text gives the same thought, content and calls"),
    78: ("vllm#45603", "a call that ends an unclosed thought is a call"),
}
"""Row: where it was reported, and what a correct server does."""

EXCUSED = {
    48: "a device that drops off the bus needs a GPU; chunk sizes are tested",
    59: "no model that is served here selects blocks of attention",
    60: "no GPU kernel is ready, and every kernel of the CPU is compared with transformers",
    61: "nothing is pinned or uploaded on the CPU; that copies of experts arrive is tested",
    64: "one device serves a model whole: nothing is cut into shards",
    67: "kernels of the CPU are compared over sizes in tests; the check at start comes with GPUs",
}
"""Rows that no test here could cover, or not whole, and why."""
MAY_BE_EXCUSED = {48, 59, 60, 61, 64, 67}
NOT_RUN = {"skip", "skipif", "xfail", "slow", "gpu", "weights"}
GIVES_UP = ("pytest.skip", "pytest.xfail")
OTHER_ROWS = {18, *range(20, 39), *range(79, 83)}
"""Of the same table: memory plans, interfaces, loading, speed. A test may name them; none has to yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A test that runs everywhere and names rows."""

    name: str
    rows: tuple[int, ...]


def marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """`pytest.mark.<name>` of each decorator."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "pytest.mark":
            yield called.attr, decorator


def rows_of(decorator: ast.expr) -> tuple[int, ...]:
    assert isinstance(decorator, ast.Call), "`report` takes rows"
    return tuple(int(ast.literal_eval(argument)) for argument in decorator.args)


def does_something(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Its body is more than a docstring, and does not skip itself."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) in GIVES_UP:
            return False
    body = [line for line in node.body if not isinstance(line, ast.Pass)]
    return any(
        not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)) for line in body
    )


def marked_tests(source: str, place: str) -> Iterator[Marked]:
    """Tests of a file that name rows; those that CI does not run are not among them."""
    module = ast.parse(source)
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            return
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        found = list(marks(node))
        rows = tuple(row for name, mark in found if name == "report" for row in rows_of(mark))
        runs = node.name.startswith("test_") and not NOT_RUN & {name for name, _ in found}
        if rows and runs and does_something(node):
            yield Marked(name=f"{place}::{node.name}", rows=rows)


@pytest.fixture(scope="module")
def all_marked() -> list[Marked]:
    return [
        test
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in marked_tests(path.read_text(), str(path.relative_to(TESTS)))
    ]


@pytest.mark.parametrize("row", REPORTS)
def test_every_reported_fault_has_a_test_or_a_reason(row: int, all_marked: list[Marked]) -> None:
    tests = [test.name for test in all_marked if row in test.rows]
    source, behaviour = REPORTS[row]
    assert tests or row in EXCUSED, f"no test names row {row} ({source}): {behaviour}"


def test_no_test_names_a_row_that_is_not_in_the_table(all_marked: list[Marked]) -> None:
    known = REPORTS.keys() | OTHER_ROWS
    assert {test.name: test.rows for test in all_marked if not known >= {*test.rows}} == {}


def test_only_what_needs_another_device_or_model_is_excused() -> None:
    assert EXCUSED.keys() <= MAY_BE_EXCUSED <= REPORTS.keys()


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("@pytest.mark.report(1, 2)\ndef test_a():\n    assert f()", (1, 2)),
        ("@pytest.mark.x\n@pytest.mark.report(3)\nasync def test_a():\n    f()", (3,)),
        ("@pytest.mark.report(1)\ndef test_a():\n    '''Later.'''", ()),
        ("@pytest.mark.report(1)\ndef test_a():\n    pass", ()),
        ("@pytest.mark.report(1)\ndef test_a():\n    ...", ()),
        ("@pytest.mark.report(1)\ndef test_a():\n    pytest.skip('later')", ()),
        ("@pytest.mark.skip\n@pytest.mark.report(1)\ndef test_a():\n    f()", ()),
        ("@pytest.mark.slow\n@pytest.mark.report(1)\ndef test_a():\n    f()", ()),
        ("@pytest.mark.skipif(x, reason='')\n@pytest.mark.report(1)\ndef test_a():\n    f()", ()),
        ("@pytest.mark.report(1)\ndef check():\n    f()", ()),
        ("pytestmark = pytest.mark.skip\n@pytest.mark.report(1)\ndef test_a():\n    f()", ()),
    ],
)
def test_only_a_test_that_runs_counts(source: str, rows: tuple[int, ...]) -> None:
    assert tuple(row for test in marked_tests(source, "x.py") for row in test.rows) == rows
