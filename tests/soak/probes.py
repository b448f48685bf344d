"""Prompts whose answers are known: asked cold and alone first, then again and again under load.

What to think of an answer that differs says `second_opinion.py`.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
from exchange import Answered, Ask
from texts import Texts

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NEW_TOKENS = 24
TEXT_FIELDS = ("messages", "prompt")


def draw_probes(seed: int, longest: int) -> tuple[Ask, ...]:
    """Greedy questions, some behind one system text or in one conversation, some long; sampled ones with a seed."""
    draw = random.Random(f"probes {seed}")
    texts = Texts(draw)
    system = [{"role": "system", "content": "You explain words. " + texts.english(350)}]
    chats: dict[str, list[dict[str, str]]] = {}
    for number in range(4):
        chats[f"question {number}"] = [_user(texts.question())]
    for number in range(8):
        chats[f"shared {number}"] = [*system, _user(texts.english(40))]
    talk = [_user(texts.english(20))]
    for number in range(4):
        talk = [*talk, {"role": "assistant", "content": texts.english(40)}]
        talk = [*talk, _user(texts.english(20))]
        chats[f"turn {number}"] = talk
    for number, size in enumerate((longest // 8, longest // 4, longest // 2)):
        chats[f"long {number}"] = [_user(texts.english(size))]
    for number in range(3):
        chats[f"script {number}"] = [_user(texts.any(300) + texts.question())]
    probes = [
        _probe(name, CHAT, {"messages": messages, "temperature": 0})
        for name, messages in chats.items()
    ]
    for number in range(4):
        body = {"messages": [_user(texts.question())], "temperature": 0.7, "seed": number}
        probes.append(_probe(f"sampled {number}", CHAT, body))
    # No questions: how these go on depends on all that came before, so that a wrong state shows.
    for number in range(12):
        body = {"prompt": texts.english(30 + 30 * number), "temperature": 0, "ignore_eos": True}
        probes.append(_probe(f"completion {number}", COMPLETIONS, body))
    return tuple(probes)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _probe(name: str, path: str, body: dict[str, Any]) -> Ask:
    must = Answered(output_most=NEW_TOKENS)
    return Ask(
        kind="probe", path=path, body={**body, "max_tokens": NEW_TOKENS}, must=must, probe=name
    )


def answered_alone(probes: tuple[Ask, ...], http: httpx.Client) -> Iterator[Ask]:
    """Each probe with the answer of a server that caches nothing and has no other client."""
    for probe in probes:
        reply = http.post(probe.path, json=probe.body)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        usage, [choice] = answer["usage"], answer["choices"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        must = Answered(
            prompt_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"]
            if choice["finish_reason"] == "length"
            else None,
            output_most=NEW_TOKENS,
            text=choice["text"] if probe.path == COMPLETIONS else choice["message"]["content"],
        )
        yield replace(probe, must=must)


def is_greedy(ask: Ask) -> bool:
    """Whether its text may differ at a near tie only."""
    return isinstance(ask.body, Mapping) and ask.body.get("temperature") == 0
