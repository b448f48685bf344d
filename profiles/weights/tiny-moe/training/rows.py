"""Token rows for training: conversations packed one after another, each row a conversation of its own."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import conversation
import layout
import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from wordnet import Entry, load_entries

PAD = layout.TEXT_CONFIG["eos_token_id"]
LENGTHS = (64, 256, 1024)
TOKEN_SHARES = (0.40, 0.58, 0.02)
LONG_TEXTS = {64: 0.0, 256: 0.06, 1024: 0.6}
"""How many rows of a length begin with a longer text."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens that stay together in a row; `counted` marks what the model has to learn."""

    ids: tuple[int, ...]
    counted: tuple[bool, ...]


class RowMaker:
    """Packs drawn turns into rows of one length."""

    def __init__(self, entries: tuple[Entry, ...], tokenizer: Tokenizer, seed: int) -> None:
        self._talker = conversation.Talker(entries, seed)
        self._tokenizer = tokenizer
        self._ready: deque[Piece] = deque()

    def batch(self, length: int, rows: int) -> tuple[Tensor, Tensor]:
        """int32 ids and bool marks, both [rows, length]."""
        ids = np.full((rows, length), PAD, dtype=np.int32)
        counted = np.zeros((rows, length), dtype=np.bool_)
        for row in range(rows):
            self._fill(ids[row], counted[row])
        return torch.from_numpy(ids), torch.from_numpy(counted)

    def _fill(self, ids: npt.NDArray[np.int32], counted: npt.NDArray[np.bool_]) -> None:
        length, filled = len(ids), 0
        for piece in self._opening(length):
            filled = _place(piece, ids, counted, filled)
        while True:
            piece = self._next()
            if filled + len(piece.ids) > length:
                if filled == 0:
                    continue
                self._ready.appendleft(piece)
                return
            filled = _place(piece, ids, counted, filled)

    def _opening(self, length: int) -> list[Piece]:
        talker, pieces = self._talker, []
        if talker.chance(0.08):
            text = conversation.system_text(talker.system())
            pieces.append(self._piece(((text, False),)))
        if talker.chance(LONG_TEXTS[length]):
            turn = talker.long_turn(sentences=length // 32)
            pieces.append(self._encode([turn]))
        return pieces if sum(len(piece.ids) for piece in pieces) <= length else []

    def _next(self) -> Piece:
        if not self._ready:
            for _ in range(256):
                turns = self._talker.turns()
                self._ready.append(self._encode(turns))
                if self._talker.chance(0.06):
                    self._ready.append(self._encode(self._talker.follow_up()))
        return self._ready.popleft()

    def _encode(self, turns: list[conversation.Turn]) -> Piece:
        texts = []
        for turn in turns:
            texts.append((conversation.prompt_text(turn.question), False))
            texts.append((conversation.answer_text(turn.answer), True))
        return self._piece(tuple(texts))

    def _piece(self, texts: tuple[tuple[str, bool], ...]) -> Piece:
        ids: list[int] = []
        counted: list[bool] = []
        for text, learned in texts:
            tokens = self._tokenizer.encode(text).ids
            ids += tokens
            counted += [learned] * (len(tokens) - 1) + [False]
        return Piece(ids=tuple(ids), counted=tuple(counted))


def _place(
    piece: Piece,
    ids: npt.NDArray[np.int32],
    counted: npt.NDArray[np.bool_],
    filled: int,
) -> int:
    end = filled + len(piece.ids)
    ids[filled:end] = piece.ids
    counted[filled:end] = piece.counted
    return end


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless batches of `tokens` tokens each, of the lengths of `LENGTHS` in turn."""

    def __init__(self, entries: Path, tokenizer: Path, tokens: int, seed: int) -> None:
        self._paths = (entries, tokenizer)
        self._tokens = tokens
        self._seed = seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        seed = self._seed + (worker.id if worker else 0)
        torch.set_num_threads(1)
        entries = load_entries(self._paths[0])
        maker = RowMaker(entries, Tokenizer.from_file(str(self._paths[1])), seed)
        draw = np.random.default_rng(seed)
        while True:
            length = int(draw.choice(LENGTHS, p=TOKEN_SHARES))
            yield maker.batch(length, self._tokens // length)


def batches(
    entries: Path, tokenizer: Path, tokens: int, seed: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(
        Batches(entries, tokenizer, tokens, seed),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)
