"""Every length of a prompt ends and is answered right: cold, as a hit, in English and in Japanese, four at a time.

Right is what transformers says: one pass over a text has the next token after every prefix of it.
"""

import inspect
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import DynamicCache

FOLDER = Path(__file__).resolve().parents[3] / "profiles" / "weights" / "tiny-moe"
LONG = (
    *(601, 639, 640, 641, 673, 703, 767, 768, 769, 831, 865, 895, 960, 1023, 1024, 1025, 1087),
    *(1151, 1217, 1281, 1345, 1409, 1453, 1535, 1536, 1537, 1622, 1729, 1857, 1985, 2047, 2048),
    *(2055, 2177, 2400, 2561, 2817, 3073, 4097, 8192),
)
"""1,453, 1,622, 2,055 and 2,400 are lengths at which other engines hung."""
OUTPUT = 3
PAGE_SIZE = 64
TOGETHER = 4
PIECE = 1024
"""Tokens of one pass of the reference: attention over a whole text at once would take gigabytes."""
THINGS = "川 山 犬 猫 本 空 海 魚 花 家 車 橋 森 鳥 雪 星 石 船 町 橋"
KINDS = "大きい 小さい 赤い 静かな 古い 新しい 冷たい 長い 珍しい 美しい"
PLACES = "東京の近く 北の国 村の外れ 学校の前 駅の裏 庭の中 島の上 道の先"
DOES = "にあります にいました で見つかりました を通ります から始まります へ運ばれた とは違います"


def english(draw: random.Random) -> Iterator[str]:
    nouns: dict[str, list[str]] = json.loads((FOLDER / "training" / "nouns.json").read_text())
    while True:
        noun = draw.choice(tuple(nouns))
        yield f"{noun}: {draw.choice(nouns[noun])}. "


def japanese(draw: random.Random) -> Iterator[str]:
    lists = [words.split(" ") for words in (KINDS, THINGS, PLACES, DOES)]
    while True:
        kind, thing, place, does = (draw.choice(words) for words in lists)
        yield f"{kind}{thing}は{place}{does}。"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Token ids, and what comes after each prefix of them."""

    ids: list[int]
    best: torch.Tensor
    """[N,2] The likeliest next tokens after each token."""
    margins: torch.Tensor
    """[N] How far the second is behind."""
    tolerances: torch.Tensor
    """[N] D19's, without its allowance for transformers' own difference."""

    def allows(self, length: int, token: int) -> bool:
        """Whether `token` is the next one after so many, or ties with it."""
        first, second = self.best[length - 1].tolist()
        tie = float(self.margins[length - 1]) < 2 * float(self.tolerances[length - 1])
        return token == first or (tie and token == second)


def read(sentences: Iterator[str], num_tokens: int, reference: Any) -> Text:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += tokenizer.encode(next(sentences), add_special_tokens=False).ids
    ids = ids[:num_tokens]
    # The keyword was renamed in transformers 5.24.
    known = inspect.signature(reference.forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    cache = {name: DynamicCache(config=reference.config)}
    found = []
    with torch.inference_mode():
        for piece in torch.tensor(ids).split(PIECE):
            logits = reference(piece.unsqueeze(0), use_cache=True, **cache).logits[0]
            top = logits.topk(2)
            margins = top.values[:, 0] - top.values[:, 1]
            found.append((top.indices, margins, tolerance(logits)))
    best, margins, tolerances = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Text(ids=ids, best=best, margins=margins, tolerances=tolerances)


def tolerance(logits: torch.Tensor) -> torch.Tensor:
    return (2e-4 * logits.abs().amax(-1)).clamp(min=1e-4)


@pytest.fixture(scope="module")
def texts(reference: Any) -> dict[str, Text]:
    longest = {language: length for length, language in in_two_languages(LONG)}
    sentences = {"english": english(random.Random(1)), "japanese": japanese(random.Random(2))}
    return {
        language: read(sentences[language], num_tokens, reference)
        for language, num_tokens in longest.items()
    }


@pytest.fixture(scope="module")
def running(start: Callable[..., Any]) -> Any:
    """Offloaded, 16k of context and pool: one engine, so that every length finds what the others left."""
    return start("tiny-cpu")


def in_two_languages(lengths: Sequence[int]) -> list[tuple[int, str]]:
    """Half of the lengths in each, without a pattern that a page's or a chunk's size could share."""
    languages = ["english", "japanese"] * (len(lengths) // 2)
    random.Random(10).shuffle(languages)
    return list(zip(lengths, languages, strict=True))


def groups(cases: list[tuple[int, str]], pool: int) -> Iterator[list[tuple[int, str]]]:
    """As many at a time as run together."""
    group: list[tuple[int, str]] = []
    for case in cases:
        held = sum(length + OUTPUT for length, _ in [*group, case])
        if len(group) == TOGETHER or held > pool:
            yield group
            group = []
        group.append(case)
    yield group


def ask(running: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """The texts of requests that come together, and how many tokens of each were cached."""
    running.messages.clear()
    for number, prompt in enumerate(prompts):
        running.add(number, prompt, OUTPUT)
    running.drain()
    said, ends = running.texts(), running.ends()
    numbers = range(len(prompts))
    assert [ends[number].reason for number in numbers] == ["length"] * len(prompts)
    return [said[number] for number in numbers], [ends[number].cached_tokens for number in numbers]


def part_at_a_tie(reference: Any, prompt: list[int], one: list[int], other: list[int]) -> bool:
    """Whether two texts are equal up to a token where the reference hardly prefers one."""
    at = next(at for at in range(OUTPUT) if one[at] != other[at])
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *one[:at]]])).logits[0, -1]
    best = logits.topk(2)
    margin = float(best.values[0] - best.values[1])
    both = {one[at], other[at]} == set(best.indices.tolist())
    return both and margin < 2 * float(tolerance(logits))


@pytest.mark.report(44, 53, 58)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("lengths", "cold_every"),
    [
        pytest.param(range(1, 201), 1, id="1 to 200"),
        pytest.param(range(201, 601), 10, id="201 to 600, every tenth group cold"),
        # By hand, after a change of kernels or cache: CI has no time for 400 more texts computed twice.
        pytest.param(range(201, 601), 1, id="201 to 600, all cold", marks=pytest.mark.slow),
        pytest.param(LONG, 1, id="40 to 8192"),
    ],
)
def test_every_length_ends_and_is_right_cold_and_as_a_hit(
    lengths: Sequence[int],
    cold_every: int,
    running: Any,
    texts: dict[str, Text],
    reference: Any,
) -> None:
    holdings = running.engine.scheduler.holdings
    pool = running.plan.kv_cache.tokens
    wrong, different = [], 0
    for number, group in enumerate(groups(in_two_languages(lengths), pool)):
        prompts = [texts[language].ids[:length] for length, language in group]
        # The others go on from what the shorter ones before them have left: hits, too.
        cold = number % cold_every == 0
        if cold:
            holdings.cache.evict(holdings.pages.num_usable)
        first, cached = ask(running, prompts)
        again = first
        if cold:
            assert cached == [0] * len(group)
            again, cached = ask(running, prompts)
            assert cached == [(length - 1) // PAGE_SIZE * PAGE_SIZE for length, _ in group]
        for case, prompt, one, other in zip(group, prompts, first, again, strict=True):
            length, language = case
            right = all(texts[language].allows(length, text[0]) for text in (one, other))
            different += one != other
            if not right or not (one == other or part_at_a_tie(reference, prompt, one, other)):
                wrong.append((length, language, one, other))
    assert wrong == []
    assert different <= len(lengths) // 50
