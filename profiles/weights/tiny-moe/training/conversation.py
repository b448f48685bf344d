"""Random conversations: which words are asked for how often, and how turns follow each other."""

from __future__ import annotations

import dataclasses
import itertools
import random

import phrases
import small_talk
from wordnet import Entry, group_by_word

TURN_KINDS = ("define", "talk", "unknown", "synonym", "kind")
TURN_WEIGHTS = (83.0, 8.0, 5.0, 2.0, 1.5)
PART_WEIGHTS = {"noun": 1.0, "verb": 0.35, "adj": 0.45, "adv": 0.3}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    question: str
    answer: str


def prompt_text(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def answer_text(answer: str) -> str:
    return f"{answer}<|im_end|>\n"


def system_text(system: str) -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n"


def commonness(entry: Entry) -> float:
    return entry.tagged + 0.5 * entry.used


def main_entry(group: tuple[Entry, ...]) -> Entry:
    """What a word means when it stands alone: its noun, unless another part is far commoner."""
    best = max(group, key=lambda entry: entry.tagged)
    for entry in group:
        if entry.part == "noun" and 3 * (entry.tagged + 5) >= best.tagged:
            return entry
    return best


class Talker:
    """Draws turns; equal seeds draw equal turns."""

    def __init__(self, entries: tuple[Entry, ...], seed: int) -> None:
        self._draw = random.Random(seed)
        groups = group_by_word(entries)
        self._known = frozenset(groups)
        self._main = {id(main_entry(group)) for group in groups.values()}
        weights = [_weight(entry) for entry in entries]
        self._entries = entries
        self._cumulative = tuple(itertools.accumulate(weights))
        common = [entry for entry in entries if commonness(entry) > 15 and " " not in entry.word]
        self._common = {
            part: tuple(entry for entry in common if entry.part == part)
            for part in ("noun", "verb", "adj")
        }
        self._letters = _letter_table(entries)

    def system(self) -> str:
        return self._draw.choice(small_talk.SYSTEM)

    def chance(self, share: float) -> bool:
        return self._draw.random() < share

    def turns(self) -> list[Turn]:
        """One turn, now and then with a second one that leans on it."""
        draw = self._draw
        kind = draw.choices(TURN_KINDS, weights=TURN_WEIGHTS)[0]
        if kind == "talk":
            question, answer = small_talk.small_talk(draw, self._common_word)
            return [Turn(question=phrases.rough(question, draw), answer=answer)]
        if kind == "unknown":
            return [self._unknown()]
        entry = self.entry()
        if kind == "synonym" and not entry.is_instance:
            question = phrases.fill(draw.choice(phrases.SYNONYM), entry, draw)
            return [Turn(question=question, answer=phrases.synonym_answer(entry))]
        if kind == "kind" and entry.part == "noun" and entry.kind:
            question = phrases.fill(draw.choice(phrases.KIND), entry, draw)
            return [Turn(question=question, answer=phrases.kind_answer(entry))]
        return self._definition(entry)

    def follow_up(self) -> list[Turn]:
        """A turn that only makes sense after another."""
        entry = self.entry()
        if id(entry) not in self._main or entry.is_instance:
            return self._definition(entry)
        question = phrases.fill(self._draw.choice(phrases.FOLLOW_UP), entry, self._draw)
        return [Turn(question=question, answer=phrases.answer(entry))]

    def long_turn(self, sentences: int) -> Turn:
        question, answer = small_talk.long_text(self._draw, self._common_word, sentences)
        return Turn(question=question, answer=answer)

    def entry(self) -> Entry:
        return self._draw.choices(self._entries, cum_weights=self._cumulative)[0]

    def definition(self, entry: Entry) -> Turn:
        is_main = id(entry) in self._main
        question = phrases.question(entry, self._draw, is_main=is_main)
        while question.lower().strip(" .?!") in small_talk.FIXED:
            question = phrases.question(entry, self._draw, is_main=is_main)
        return Turn(question=phrases.rough(question, self._draw), answer=phrases.answer(entry))

    def _definition(self, entry: Entry) -> list[Turn]:
        turns = [self.definition(entry)]
        if not entry.is_instance and self._draw.random() < 0.02:
            question = self._draw.choice(phrases.SECOND)
            turns.append(Turn(question=question, answer=phrases.second_answer(entry)))
        return turns

    def _common_word(self, part: str) -> Entry:
        return self._draw.choice(self._common[part])

    def _unknown(self) -> Turn:
        word = self._no_word()
        while word in self._known:
            word = self._no_word()
        entry = dataclasses.replace(self._common["noun"][0], word=word)
        form = self._draw.choice(phrases.MEANING + phrases.NOUN)
        question = phrases.fill(form, entry, self._draw)
        return Turn(question=phrases.rough(question, self._draw), answer=small_talk.UNKNOWN_WORD)

    def _no_word(self) -> str:
        """The head of one word and the tail of another, or letters that follow each other in English."""
        draw = self._draw
        if draw.random() < 0.6:
            head, tail = (draw.choice(self._common["noun"]).word for _ in range(2))
            return head[: draw.randint(2, 4)] + tail[-draw.randint(3, 5) :].lower()
        word, length = "^^", draw.randint(6, 13)
        while len(word) < length and word[-2:] in self._letters:
            word += draw.choice(self._letters[word[-2:]].replace("$", "") or "e")
        return word[2:]


def _weight(entry: Entry) -> float:
    weight: float = min(1.0 + commonness(entry), 400.0) ** 0.6 * PART_WEIGHTS[entry.part]
    if " " in entry.word or entry.is_instance:
        weight *= 0.4
    if entry.tagged == 0 and entry.used < 2:
        weight *= 0.4
    return weight


def _letter_table(entries: tuple[Entry, ...]) -> dict[str, str]:
    """Which letters follow which two, for words that look English and are none."""
    following: dict[str, list[str]] = {}
    words = [entry.word for entry in entries if entry.word.isalpha() and entry.word.islower()]
    for word in words[::7]:
        padded = f"^^{word}$"
        for at in range(2, len(padded)):
            following.setdefault(padded[at - 2 : at], []).append(padded[at])
    return {pair: "".join(letters) for pair, letters in following.items()}
