"""The compiler counts a kernel's workspace in the sizes that the kernel works in: each number stands in both rooms."""

from dataclasses import fields, replace

import pytest
import torch
from tests.compiler.test_workspaces import QWEN_4090 as SIZES

from firmtoken.compiler.computed_constants import RULES
from firmtoken.compiler.workspaces import (
    GDN_CHUNK,
    LARGEST_PAGE,
    LARGEST_TILE,
    SAMPLE_CHUNK,
    SAMPLE_DIGITS,
    SMALLEST_TILE,
)
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.gdn import torch_chunk
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes


def test_a_draw_reads_chunks_of_the_cards_size() -> None:
    [card] = [card for card in CARDS if card.workspace == "sample"]
    assert dict(card.constants)["chunk"] == SAMPLE_CHUNK


def test_parts_and_wide_pages_of_attention_fit_what_is_counted_for_them() -> None:
    cards = [card for card in CARDS if card.workspace in ("mixer_tile", "prefill_parts")]
    pages = {size for card in cards for size in card.page_sizes}
    assert max(pages) == LARGEST_PAGE and all(LARGEST_PAGE % size == 0 for size in pages)
    assert {64, 128} == {
        RULES[rule](replace(SIZES, capability=capability, head_dim=width))
        for rule in ("prefill_tile", "prefill_tile_fp8")
        for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
        for width in (64, 128, 256)
    }
    assert LARGEST_TILE == 128


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


def test_tiles_grow_with_rows_and_the_largest_begin_where_the_card_says() -> None:
    [card] = [card for card in CARDS if (card.op, card.name) == ("linear", "triton_fp8_tiles")]
    names = {field.name for field in fields(TileShapes)}
    shapes = {name: number for name, number in card.constants if name in names}
    cut = TileShapes(**shapes, large_stages=3)
    rows = (1, 16, 17, 64, 65, cut.large_from - 1, cut.large_from, 10**5)
    assert [cut.tile_rows(count) for count in rows] == [16, 16, 32, 64, 64, 64, 128, 128]
