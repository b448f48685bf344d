"""Talk that is not about a word's meaning: greetings, the model itself, and what it turns away."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wordnet import Entry

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("small_talk.json").read_text())  # JSON
UNKNOWN_WORD: str = DATA["unknown_word"]
SYSTEM: tuple[str, ...] = tuple(DATA["system"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    answer: str
    weight: float
    asked: tuple[str, ...]
    """Forms: `{noun}`, `{verb}`, `{adj}` are drawn words, other names are keys of the fillers."""


INTENTS = tuple(
    Intent(answer=row["answer"], weight=row["weight"], asked=tuple(row["asked"]))
    for row in DATA["intents"]
)
WEIGHTS = tuple(intent.weight for intent in INTENTS)
FIXED = frozenset(form.lower().strip(" .?!") for intent in INTENTS for form in intent.asked)
"""What is small talk and so no question for the word of that name."""


def small_talk(draw: random.Random, word: Callable[[str], Entry]) -> tuple[str, str]:
    """A question and its answer; `word` draws an entry of a part of speech."""
    intent = draw.choices(INTENTS, weights=WEIGHTS)[0]
    first, *pieces = draw.choice(intent.asked).split("{")
    text = first
    for piece in pieces:
        name, _, rest = piece.partition("}")
        fillers = DATA["fillers"].get(name)
        text += (draw.choice(fillers) if fillers else word(name).word) + rest
    return text, intent.answer


def long_text(draw: random.Random, word: Callable[[str], Entry], sentences: int) -> tuple[str, str]:
    drawn = [word("noun") for _ in range(sentences)]
    text = " ".join(entry.example or f"{entry.glosses[0]}." for entry in drawn)
    return draw.choice(DATA["long_forms"]).format(text=text), DATA["too_long"]
