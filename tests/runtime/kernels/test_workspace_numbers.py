"""The compiler counts a kernel's workspace in the sizes that the kernel works in: each number stands in both rooms."""

import pytest
import torch

from firmtoken.compiler.workspaces import (
    GDN_CHUNK,
    SAMPLE_CHUNK,
    SAMPLE_DIGITS,
    SMALLEST_TILE,
)
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.gdn import torch_chunk
from firmtoken.runtime.kernels.tile_shapes import SHAPES


def test_a_draw_reads_chunks_of_the_cards_size() -> None:
    [card] = [card for card in CARDS if card.workspace == "sample"]
    assert dict(card.constants)["chunk"] == SAMPLE_CHUNK


def test_no_tile_of_pairs_is_smaller() -> None:
    assert min(SHAPES) == SMALLEST_TILE


def test_a_chunk_of_the_gated_delta_net_is_everywhere_the_same() -> None:
    pytest.importorskip("triton")  # without it the kernels' files cannot be imported
    from firmtoken.runtime.kernels.gdn.chunk_builds import CHUNK_ROWS
    from firmtoken.runtime.kernels.gdn.chunk_rows import CHUNK

    assert {CHUNK_ROWS, CHUNK.value, torch_chunk.CHUNK} == {GDN_CHUNK}


def test_the_scratch_of_a_draw_is_what_it_is_cut_into() -> None:
    pytest.importorskip("triton")
    from firmtoken.runtime.kernels.sample.triton_digits import cut_workspace

    scratch = cut_workspace(torch.empty(2**20, dtype=torch.uint8), 3, 5)
    assert scratch.sums.shape == (2, 3, 5, SAMPLE_DIGITS)
