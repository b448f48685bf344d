"""Prescribed experts have the hit rates that a cache finds in real ones (facts/performance.md 3.4)."""

from collections import OrderedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from firmtoken.compiler.prescribed_routes import CONVERSATION, CONVERSATIONS
from firmtoken.runtime.weights.synthetic_routes import ROUTERS, route_table

EXPERTS, K = 256, 8
STEADY = 128
"""Tokens after which the cache is warm."""
Table = NDArray[np.int32]


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return [table("q36", layer=layer) for layer in range(2)]


def table(router: str, *, layer: int = 0, seed: int = 5) -> Table:
    found = route_table(ROUTERS[router], seed=seed, layer=layer, num_experts=EXPERTS, chosen=K)
    return found.reshape(CONVERSATIONS, CONVERSATION, K)


def hit_rate(table: Table, resident: float) -> float:
    """Of an LRU cache over one layer, event by event: the experts of a token are looked up before any is admitted."""
    hits = looked_up = 0
    for conversation in table:
        kept: OrderedDict[int, None] = OrderedDict()
        for at, row in enumerate(conversation.tolist()):
            found = [expert for expert in row if expert in kept]
            if at >= STEADY:
                hits, looked_up = hits + len(found), looked_up + K
            for expert in row:
                kept[expert] = None
                kept.move_to_end(expert)
            while len(kept) > resident * EXPERTS:
                kept.popitem(last=False)
    return hits / looked_up


@pytest.mark.parametrize(
    ("router", "resident", "published"),
    [
        ("q36", 0.10, 0.56),
        ("q36", 0.37, 0.84),
        ("q36", 0.60, 0.94),
        ("q30", 0.25, 0.91),
        ("nem", 0.37, 0.69),
    ],
)
def test_a_cache_hits_as_often_as_in_the_note(
    router: str, resident: float, published: float
) -> None:
    rates = [hit_rate(table(router, layer=layer), resident) for layer in range(2)]
    assert sum(rates) / 2 == pytest.approx(published, abs=0.03)


def test_a_chunk_of_512_tokens_touches_most_experts(tables: list[Table]) -> None:
    touched = [len(np.unique(conversation[:512])) for one in tables for conversation in one]
    assert np.mean(touched) == pytest.approx(220, abs=12)


def test_four_sequences_at_one_position_share_few_experts(tables: list[Table]) -> None:
    """Sequence s of a launch is in conversation s: at 4 the note has a union of 29.7 experts of 32."""
    unions = [len(np.unique(one[:4, at])) for one in tables for at in range(CONVERSATION)]
    assert np.mean(unions) == pytest.approx(29.7, abs=0.6)


def test_a_row_has_each_expert_once(tables: list[Table]) -> None:
    for one in tables:
        rows = np.sort(one.reshape(-1, K), axis=1)
        assert (np.diff(rows, axis=1) > 0).all()
        assert rows.min() >= 0 and rows.max() < EXPERTS


def test_equal_seeds_give_equal_tables_and_layers_differ(tables: list[Table]) -> None:
    assert np.array_equal(table("q36", layer=1), tables[1])
    assert not np.array_equal(tables[0], tables[1])
    assert not np.array_equal(table("q36", seed=6), tables[0])


@pytest.mark.parametrize(("num_experts", "chosen"), [(1, 1), (2, 2), (8, 8), (32, 4)])
def test_any_number_of_experts_will_do(num_experts: int, chosen: int) -> None:
    found = route_table(ROUTERS["q36"], seed=0, layer=0, num_experts=num_experts, chosen=chosen)
    assert found.shape == (CONVERSATION * CONVERSATIONS, chosen)
    assert all(len(set(row)) == chosen for row in found[:50].tolist())
