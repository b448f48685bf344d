"""How people ask for a meaning, and how the model answers."""

from __future__ import annotations

import random
import re

from wordnet import PART_NAMES, Entry

MEANING = (
    "What does {x} mean?",
    "What does {q} mean?",
    "what does {x} mean",
    "What does the word {x} mean?",
    "What does the word {q} mean?",
    "what does the word {x} mean",
    "Define {x}",
    "Define {x}.",
    "define {x}",
    "Define {q}.",
    "Define the word {x}.",
    "Please define {x}.",
    "Can you define {x}?",
    "Could you define {q} for me?",
    "Give me a definition of {x}.",
    "Give the definition of {q}.",
    "Give a definition for {x}",
    "What is the definition of {x}?",
    "What is the definition of {q}?",
    "What's the definition of {x}?",
    "definition of {x}",
    "{x} definition",
    "{x} meaning",
    "{x} meaning in English",
    "define: {x}",
    "Define: {x}",
    "Definition of {x}, please",
    "What does {x} mean in English?",
    "What does {x} mean in simple words?",
    "What is the definition of {x} in simple words?",
    "Explain {x} in simple words.",
    "What is the meaning of {x}?",
    "What is the meaning of the word {x}?",
    "What is the meaning of {q}?",
    "What's the meaning of {x}?",
    "meaning of {x}",
    "Meaning of {x}?",
    "Explain {x}",
    "Explain the word {x}.",
    "Explain the meaning of {x}.",
    "Explain what {x} means.",
    "Can you explain {q}?",
    "Can you explain what {x} means?",
    "Can you tell me what {x} means?",
    "Could you tell me what {q} means?",
    "Please tell me what {x} means.",
    "Tell me what {x} means.",
    "Tell me the meaning of {x}.",
    "Tell me what the word {x} means.",
    "I want to know what {x} means.",
    "I don't know what {x} means.",
    "I do not understand the word {x}.",
    "Do you know what {x} means?",
    "Do you know the word {x}?",
    "How would you define {x}?",
    "How do you define {q}?",
    "What do you mean by {x}?",
    "What is meant by {x}?",
    "In English, what does {x} mean?",
    "Hi, what does {x} mean?",
    "Hello! What is the meaning of {x}?",
    "Please explain {x}.",
    "{x}",
    "{x}?",
    "{x}.",
)
NOUN = (
    "What is {a}?",
    "What is {a}?",
    "What is {a}?",
    "what is {a}",
    "What is {a}",
    "What's {a}?",
    "what's {a}",
    "What is {x}?",
    "What is {q}?",
    "what is {x}",
    "What's {x}?",
    "What exactly is {a}?",
    "Tell me what {a} is.",
    "Please tell me what {a} is.",
    "Can you tell me what {a} is?",
    "Do you know what {a} is?",
    "Explain what {a} is.",
    "Describe {a}.",
    "Describe {x}.",
    "whats {a}",
    "Whats {a}?",
    "whats {x}?",
    "Tell me about {x}.",
    "Tell me about {s}.",
    "Tell me about {a}.",
    "What is the noun {x}?",
    "What does the noun {x} mean?",
    "Define the noun {x}.",
    "Define {a}.",
    "What does {a} mean?",
    "What are {s}?",
    "What are {s}",
    "Define {s}.",
    "{a}",
    "Hi, what is {a}?",
    "Hey, what is {x}?",
)
OTHER_PART = (
    "What does the {p} {x} mean?",
    "What does the {p} {q} mean?",
    "Define the {p} {x}.",
    "Define {x} as {n}.",
    "What does {x} mean as {n}?",
    "What is the meaning of the {p} {x}?",
    "Explain the {p} {x}.",
    "meaning of the {p} {x}",
)
VERB = ("What does to {x} mean?", "What does it mean to {x}?", "Define to {x}.", "to {x}")
NAME = ("What is {x}?", "Tell me about {x}.", "What do you know about {x}?", "Describe {x}.")
PERSON = ("Who is {x}?", "Who was {x}?", "Who is {x}?", "Who was {x}?")
FOLLOW_UP = (
    "And {x}?",
    "And {a}?",
    "And {s}?",
    "What about {a}?",
    "what about {x}",
    "And what is {a}?",
    "and {x}",
    "What about {x}?",
    "And what about {x}?",
    "Now {x}.",
    "Now define {x}.",
    "And what does {x} mean?",
    "Thanks. And {x}?",
    "How about {x}?",
    "Next word: {x}",
)
SYNONYM = (
    "What is another word for {x}?",
    "Give me a synonym of {x}.",
    "Synonyms of {x}?",
    "Another word for {x}?",
    "another word for {x}",
    "What is a synonym for {x}?",
)
KIND = ("What kind of thing is {a}?", "What sort of thing is {x}?", "What kind of thing is {x}?")
SECOND = (
    "Does it have another meaning?",
    "Any other meaning?",
    "What else does it mean?",
    "Another meaning?",
    "Can it mean something else?",
)


def answer(entry: Entry) -> str:
    """The definition, as the model says it."""
    gloss = entry.glosses[0]
    if entry.is_instance:
        return f"{entry.word} is {_with_article(gloss)}."
    return f"The {PART_NAMES[entry.part]} {entry.word} means {_meaning(entry, gloss)}."


def second_answer(entry: Entry) -> str:
    if len(entry.glosses) > 1:
        return f"It can also mean {_meaning(entry, entry.glosses[1])}."
    return f"I know no other meaning of {entry.word}."


def synonym_answer(entry: Entry) -> str:
    if entry.synonyms:
        return f"Another word for {entry.word} is {' or '.join(entry.synonyms[:2])}."
    return f"I know no other word for {entry.word}."


def kind_answer(entry: Entry) -> str:
    return f"{_capital(indefinite(entry.word))} is a kind of {entry.kind}."


def question(entry: Entry, draw: random.Random, *, is_main: bool) -> str:
    """A way to ask for `entry`; `is_main` says that its word alone is enough to mean it."""
    if entry.is_person and entry.is_instance:
        forms = PERSON
    elif entry.is_instance:
        forms = NAME if draw.random() < 0.6 else MEANING
    elif entry.part == "noun" and is_main:
        forms = NOUN if draw.random() < 0.5 else MEANING
    elif entry.part == "noun":
        forms = NOUN[:5]
    elif is_main and draw.random() < 0.7:
        forms = MEANING
    elif entry.part == "verb" and draw.random() < 0.5:
        forms = VERB
    else:
        forms = OTHER_PART
    return fill(draw.choice(forms), entry, draw)


def fill(form: str, entry: Entry, draw: random.Random) -> str:
    word = entry.word
    roll = draw.random()
    if roll < 0.12:
        word = _capital(word)
    elif roll < 0.14:
        word = word.upper()
    part = PART_NAMES[entry.part]
    mark = draw.choice('""\'')
    return form.format(
        x=word,
        q=f"{mark}{word}{mark}",
        a=indefinite(word) if draw.random() < 0.93 else f"the {word}",
        s=plural(word),
        p=part,
        n=indefinite(part),
    )


def rough(text: str, draw: random.Random) -> str:
    """The text as a hurried person types it, now and then."""
    roll = draw.random()
    if roll < 0.08:
        return text.lower()
    if roll < 0.14:
        return text.rstrip("?.!")
    if roll < 0.16:
        return text + " "
    if roll < 0.18:
        return text + "\n"
    if roll < 0.20:
        return text.rstrip("?.") + draw.choice(("??", " ?", "!", " please", ", please?"))
    return text


def indefinite(word: str) -> str:
    return f"{'an' if re.match('[aeiouAEIOU]', word) else 'a'} {word}"


def plural(word: str) -> str:
    if re.search("(s|x|z|ch|sh)$", word):
        return word + "es"
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + "s"


def _meaning(entry: Entry, gloss: str) -> str:
    return f"to {gloss}" if entry.part == "verb" and not gloss.startswith("to ") else gloss


def _with_article(gloss: str) -> str:
    if re.match("(a|an|the|any|one|either|each) ", gloss, flags=re.IGNORECASE):
        return gloss
    return indefinite(gloss)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
