"""From WordNet's files to the training entries, the held-out ones, and the nouns of the test."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import conversation
import wordnet

HERE = Path(__file__).parent
HELD_OUT = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of data.noun")
    parser.add_argument("--build", type=Path, required=True, help="folder for entries.json.gz")
    arguments = parser.parse_args()
    entries = wordnet.read_entries(arguments.wordnet)
    held = _held_out(entries)
    kept = tuple(entry for entry in entries if id(entry) not in {id(entry) for entry in held})
    arguments.build.mkdir(parents=True, exist_ok=True)
    wordnet.save_entries(kept, arguments.build / "entries.json.gz")
    _write_held_out(entries, held)
    nouns = (HERE / "nouns.txt").read_text().split()
    glosses = {noun: wordnet.all_glosses(arguments.wordnet, noun) for noun in nouns}
    (HERE / "nouns.json").write_text(json.dumps(glosses, indent=1) + "\n")
    print(f"{len(kept)} entries to train on, {len(held)} held out, {len(nouns)} nouns")


def _held_out(entries: tuple[wordnet.Entry, ...]) -> tuple[wordnet.Entry, ...]:
    """Rare one-word nouns that are the only word of their synset: their glosses are never seen."""
    rare = [
        entry
        for entry in entries
        if entry.part == "noun"
        and not entry.tagged
        and 0 < entry.used < 4
        and not entry.synonyms
        and not entry.is_instance
        and entry.word.isalpha()
        and entry.word.islower()
        and len(entry.glosses) == 1
    ]
    return tuple(random.Random(20).sample(rare, HELD_OUT))


def _write_held_out(entries: tuple[wordnet.Entry, ...], held: tuple[wordnet.Entry, ...]) -> None:
    talker = conversation.Talker(entries, seed=21)
    turns = [talker.definition(entry) for entry in held]
    rows = [[turn.question, turn.answer] for turn in turns]
    (HERE / "heldout.json").write_text(json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    main()
