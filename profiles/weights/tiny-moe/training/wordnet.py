"""WordNet 3.0 as dictionary entries: one for each word and part of speech, with its first gloss."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
"""Names of WordNet's four files; also the order in which a word's parts of speech are preferred."""
PART_NAMES = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
SENSE_KEY_PARTS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
PERSON_FILE = "18"
LONGEST_GLOSS = 130
"""Characters of a gloss that an answer may hold: about 36 tokens."""
CLAUSE_MARKS = (", ", " and ", " or ", " that ", " which ", " (")
SMALL_WORDS = "a an the of in on at to by for from with and or that which whose as any"
DANGLING = frozenset(SMALL_WORDS.split())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Synset:
    words: tuple[str, ...]
    gloss: str
    examples: tuple[str, ...]
    hypernyms: tuple[str, ...]
    is_instance: bool
    is_person: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    word: str
    part: str
    glosses: tuple[str, ...]
    """Shortened gloss of the first sense, then of the second where there is one."""
    synonyms: tuple[str, ...]
    kind: str
    """First word of the hypernym, or empty."""
    example: str
    is_instance: bool
    is_person: bool
    tagged: int
    """How often WordNet's tagged corpora use the word in this part of speech."""
    used: int
    """How often WordNet's own glosses and examples use the word."""


def read_entries(folder: Path) -> tuple[Entry, ...]:
    """All entries of the WordNet database files in `folder`, parts of speech in order."""
    tagged = _read_tag_counts(folder)
    synsets = {part: dict(_read_synsets(folder / f"data.{part}")) for part in PARTS}
    used = _count_words(synsets)
    return tuple(
        entry
        for part in PARTS
        for entry in _read_index(folder / f"index.{part}", part, synsets[part], tagged, used)
    )


def all_glosses(folder: Path, noun: str) -> tuple[str, ...]:
    """Every gloss of a noun, unshortened and without the examples."""
    synsets = dict(_read_synsets(folder / "data.noun"))
    for line in (folder / "index.noun").read_text().splitlines():
        if line.startswith(f"{noun} "):
            return tuple(synsets[offset].gloss for offset in _offsets(line.split()))
    raise KeyError(noun)


def save_entries(entries: tuple[Entry, ...], path: Path) -> None:
    rows = [
        [getattr(entry, field.name) for field in dataclasses.fields(Entry)] for entry in entries
    ]
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))


def load_entries(path: Path) -> tuple[Entry, ...]:
    names = [field.name for field in dataclasses.fields(Entry)]
    rows = json.loads(gzip.decompress(path.read_bytes()))
    return tuple(Entry(**dict(zip(names, row, strict=True))) for row in rows)


def shorten(gloss: str) -> str:
    """The gloss in at most `LONGEST_GLOSS` characters: asides go first, then trailing clauses."""
    text = re.sub(r"^\([^)]*\)\s*", "", gloss)
    if len(text) > LONGEST_GLOSS:
        text = re.sub(r"\s*\([^)]*\)", "", text)
    text = text.split(": ")[0]
    while len(text) > LONGEST_GLOSS:
        cut = max(text.rfind(mark, 30) for mark in CLAUSE_MARKS)
        text = text[:cut] if cut > 0 else text[: text.rfind(" ", 0, LONGEST_GLOSS)]
    while text.split(" ")[-1] in DANGLING:
        text = text.rpartition(" ")[0]
    return text.strip(" ,:-")


def _read_tag_counts(folder: Path) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for line in (folder / "cntlist.rev").read_text().splitlines():
        key, _, count = line.split()
        lemma, _, rest = key.partition("%")
        counts[lemma, SENSE_KEY_PARTS[rest[0]]] += int(count)
    return counts


def _read_synsets(path: Path) -> Iterator[tuple[str, Synset]]:
    fields_by_offset = {}
    for line in path.read_text().splitlines():
        if not line.startswith(" "):
            left, _, right = line.partition(" | ")
            fields_by_offset[left.split(" ", 1)[0]] = (left.split(), right.strip())
    names = {offset: _words(fields)[0] for offset, (fields, _) in fields_by_offset.items()}
    for offset, (fields, text) in fields_by_offset.items():
        words = _words(fields)
        pointers = _pointers(fields, len(words))
        gloss, examples = _split_gloss(text)
        yield (
            offset,
            Synset(
                words=words,
                gloss=gloss,
                examples=examples,
                hypernyms=tuple(names[to] for mark, to in pointers if mark == "@" and to in names),
                is_instance=any(mark == "@i" for mark, _ in pointers),
                is_person=fields[1] == PERSON_FILE,
            ),
        )


def _words(fields: list[str]) -> tuple[str, ...]:
    count = int(fields[3], 16)
    raw = fields[4 : 4 + 2 * count : 2]
    return tuple(re.sub(r"\((a|p|ip)\)$", "", word).replace("_", " ") for word in raw)


def _pointers(fields: list[str], word_count: int) -> tuple[tuple[str, str], ...]:
    start = 4 + 2 * word_count
    count = int(fields[start])
    rows = fields[start + 1 : start + 1 + 4 * count]
    return tuple((rows[i], rows[i + 1]) for i in range(0, 4 * count, 4))


def _split_gloss(text: str) -> tuple[str, tuple[str, ...]]:
    examples = tuple(re.findall(r'"([^"]+)"', text))
    bare = re.split(r'[;:,]?\s*"', text)[0]
    depth = 0
    for at, mark in enumerate(bare):
        depth += (mark == "(") - (mark == ")")
        if mark == ";" and depth == 0 and at > 0:
            return bare[:at].strip(), examples
    return bare.strip(), examples


def _count_words(synsets: dict[str, dict[str, Synset]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for table in synsets.values():
        for synset in table.values():
            for text in (synset.gloss, *synset.examples):
                counts.update(re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower()))
    for word, count in tuple(counts.items()):
        for ending in ("s", "es"):
            if word.endswith(ending) and counts[word[: -len(ending)]] > 0:
                counts[word[: -len(ending)]] += count
    return counts


def _read_index(
    path: Path,
    part: str,
    synsets: dict[str, Synset],
    tagged: dict[tuple[str, str], int],
    used: Counter[str],
) -> Iterator[Entry]:
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            continue
        fields = line.split()
        senses = [synsets[offset] for offset in _offsets(fields)]
        first = senses[0]
        lemma = fields[0].replace("_", " ")
        word = next((name for name in first.words if name.lower() == lemma), lemma)
        glosses = tuple(filter(None, (shorten(sense.gloss) for sense in senses[:2])))
        if not glosses or not re.search(r"[A-Za-z]{2}|^[A-Za-z]$", word):
            continue
        yield Entry(
            word=word,
            part=part,
            glosses=glosses,
            synonyms=tuple(name for name in first.words if name.lower() != lemma)[:3],
            kind=first.hypernyms[0] if first.hypernyms else "",
            example=next((text for text in first.examples if 12 < len(text) < 90), ""),
            is_instance=first.is_instance,
            is_person=first.is_person,
            tagged=tagged.get((fields[0], part), 0),
            used=used[lemma],
        )


def _offsets(fields: list[str]) -> list[str]:
    return fields[-int(fields[2]) :]


def group_by_word(entries: tuple[Entry, ...]) -> dict[str, tuple[Entry, ...]]:
    groups: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.word.lower()].append(entry)
    return {word: tuple(group) for word, group in groups.items()}
