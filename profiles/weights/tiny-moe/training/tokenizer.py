"""The tokenizer: byte-level BPE of 4,096 rows with Qwen's ChatML tokens at the end."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import conversation
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from wordnet import load_entries

VOCABULARY = 4096
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VISIBLE = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added tokens that decoding never hides, as in Qwen's files."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
"""Qwen3.5's, because transformers builds its own tokenizer for this model type and keeps the merges only.
Its NFC step is left out here, so that any text comes back as it was."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the tokenizer.json to write")
    parser.add_argument("--turns", type=int, default=400_000)
    arguments = parser.parse_args()
    talker = conversation.Talker(load_entries(arguments.entries), seed=1)
    train(_texts(talker, arguments.turns)).save(str(arguments.out))


def train(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(VISIBLE),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in VISIBLE])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def _texts(talker: conversation.Talker, count: int) -> Iterator[str]:
    turns = itertools.chain.from_iterable(talker.turns() for _ in range(count))
    for turn in turns:
        yield f"user\n{turn.question}"
        yield f"assistant\n{turn.answer}"


if __name__ == "__main__":
    main()
