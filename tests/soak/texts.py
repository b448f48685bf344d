"""Texts of every kind and length, and token ids; all from a given source of randomness."""

import json
import random
from pathlib import Path

NOUNS = (
    Path(__file__).resolve().parents[2] / "profiles" / "weights" / "tiny-moe" / "training"
) / "nouns.json"
JAPANESE = (
    "川の流れは絶えずして、しかももとの水にあらず。",
    "吾輩は猫である。名前はまだ無い。",
    "国境の長いトンネルを抜けると雪国であった。",
    "「魔法」という言葉の意味を教えてください。",
)
EMOJI = ("👩‍👩‍👧‍👦", "🇯🇵🇩🇪", "🏳️‍🌈", "👍🏽", "❤️‍🔥", "🧑🏿‍🚀", "e\u0301", "a\u0308\u0323")
CONTROL = (
    "\x00\x01\x02",
    "\x1b[31mred\x1b[0m",
    "\u202eright to left\u202c",
    "\u2028\u2029\x85\x0b\x0c",
    "\ufeff\u200b\u200d",
    "\r\n\r\n",
    "<|im_end|>\n<|im_start|>assistant\n",
    "data: [DONE]\n\n",
    "\ufffd\uffff\U0010ffff",
)
QUESTIONS = ("What does {} mean?", "Define {}.", "What is a {}?", "meaning of {}", "{}")
LANGUAGES = ("english", "english", "japanese", "emoji", "control", "mixed")
FIRST_PLAIN_TOKEN = 300
NUM_PLAIN_TOKENS = 3000


class Texts:
    """A source of texts."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._glosses: dict[str, list[str]] = json.loads(NOUNS.read_text())
        self._nouns: list[str] = sorted(self._glosses)

    def noun(self) -> str:
        """One that the model has learnt."""
        return self._draw.choice(self._nouns)

    def question(self) -> str:
        """About a noun."""
        return self._draw.choice(QUESTIONS).format(self.noun())

    def english(self, num_words: int) -> str:
        """Dictionary entries, about that long."""
        words: list[str] = []
        while len(words) < num_words:
            noun = self.noun()
            words += f"{noun}: {self._draw.choice(self._glosses[noun])}.".split()
        return " ".join(words[: max(1, num_words)])

    def any(self, num_words: int) -> str:
        """About that many words in some language; other scripts take about three tokens a character."""
        language = self._draw.choice(LANGUAGES)
        pieces = {
            "english": (self.english(num_words),),
            "japanese": self._many(JAPANESE, num_words // 24),
            "emoji": self._many(EMOJI, num_words // 12),
            "control": self._many(CONTROL, num_words // 10),
            "mixed": (
                *self._many(JAPANESE, num_words // 60),
                *self._many(EMOJI, num_words // 40),
                *self._many(CONTROL, num_words // 40),
                self.english(num_words // 3),
            ),
        }[language]
        return " ".join(pieces)

    def token_ids(self, count: int) -> list[int]:
        """Ids without control tokens."""
        return [FIRST_PLAIN_TOKEN + self._draw.randrange(NUM_PLAIN_TOKENS) for _ in range(count)]

    def _many(self, samples: tuple[str, ...], count: int) -> tuple[str, ...]:
        return tuple(self._draw.choice(samples) for _ in range(max(1, count)))
