"""Ops that move states and rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from firmtoken.runtime.kernels.batch import Batch

Launch = Callable[..., Any]
MakeBatch = Callable[..., Batch]


@pytest.mark.report(53)
def test_a_snapshot_restores_to_live_and_shadow_and_leaves_the_rest(
    launch: Launch, make_batch: MakeBatch
) -> None:
    conv, recurrent = torch.randn(6, 8, 3), torch.randn(6, 2, 4, 4)
    snaps = torch.full((3, 24 + 32), torch.nan)
    states = {"conv_state": conv, "recurrent_state": recurrent}
    saved = make_batch([], moves=((4, 2), (1, 0)))
    launch("snapshot", saved, snaps=snaps, **states)
    assert torch.equal(snaps[2], torch.cat((conv[4].flatten(), recurrent[4].flatten())))
    assert snaps[1].isnan().all()
    before = conv.clone(), recurrent.clone()
    launch("restore", make_batch([], moves=((2, 3, 5), (-1, 1, 2))), snaps=snaps, **states)
    for state, old in zip((conv, recurrent), before, strict=True):
        assert torch.equal(state[3], old[4])
        assert torch.equal(state[5], old[4])
        assert not state[1].any()
        assert not state[2].any()
        assert torch.equal(state[[0, 4]], old[[0, 4]])


def test_copy_moves_the_listed_rows(launch: Launch, make_batch: MakeBatch) -> None:
    source, target = torch.randn(5, 3), torch.zeros(4, 3)
    launch("copy", make_batch([], copies=((4, 0), (1, 2))), source=source, target=target)
    assert torch.equal(target, torch.stack((source[4], target[1], source[1], target[3])))
    assert not target[[1, 3]].any()


def test_copy_of_nothing_and_mark_do_nothing(launch: Launch, make_batch: MakeBatch) -> None:
    target = torch.zeros(4, 3)
    launch("copy", make_batch([]), source=torch.ones(5, 3), target=target)
    assert not target.any()
    assert launch("mark", make_batch([])) is None
