"""What clients do, good and bad: a stream of `Ask`s, from a given source of randomness."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any  # Any: JSON

from exchange import Answered, Ask, Leave, Refused, streamed
from probes import CHAT, COMPLETIONS
from texts import FIRST_PLAIN_TOKEN, Texts

KINDS = (
    ("probe", 30),
    ("chat", 14),
    ("completion", 14),
    ("several", 3),
    ("stop", 3),
    ("limit", 1),
    ("leave_stream", 16),
    ("leave_whole", 5),
    ("leave_prefill", 4),
    ("refused", 12),
)
OUTPUTS = (1, 2, 5, 16, 16, 32, 100)
STOPS = ((" a",), ("the",), ("e", "."), ("zzzz", "\n"), ("の",))
NUM_HOT = 6
NESTED = b'{"messages": ' + 20_000 * b"["


class Traffic:
    """The requests of one client."""

    def __init__(
        self, draw: random.Random, probes: tuple[Ask, ...], *, model: str, context: int, most: int
    ) -> None:
        self.texts = Texts(draw)
        self.draw = draw
        self._probes = probes
        self._model = model
        self._context = context
        self._most_prompts = most
        """Of one request."""
        self._longest = min(3000, context // 4)

    def next(self) -> Ask:
        """The next request."""
        names, weights = zip(*KINDS, strict=True)
        match self.draw.choices(names, weights)[0]:
            case "probe":
                return self.probe()
            case "chat":
                return self._either(self.chat())
            case "completion":
                return self._either(self.completion())
            case "several":
                return self._either(self._several())
            case "stop":
                return self._either(self._stopped())
            case "limit":
                return self._either(self._at_the_limit())
            case "leave_stream":
                return self._leaving_a_stream()
            case "leave_whole":
                return self._leaving_a_whole_answer()
            case "leave_prefill":
                return self._leaving_a_prefill()
            case _:
                return self.draw.choice(refusals(self._context, self._model, self._most_prompts))

    def probe(self) -> Ask:
        """A known question; now and then by a client that reads slowly, or asks for more than there is."""
        # A few are asked all the time: their pages are in the cache when they are asked again.
        is_hot = self.draw.random() < 0.6
        probe = self.draw.choice(self._probes[-NUM_HOT:] if is_hot else self._probes)
        if self.draw.random() < 0.1:
            probe = replace(probe, pause_s=self.draw.uniform(0.5, 3))
        assert isinstance(probe.must, Answered) and isinstance(probe.body, Mapping)
        if probe.must.output_tokens is None and self.draw.random() < 0.2:
            # It ends by itself: the ceiling does not matter, and is lowered to what the context leaves.
            probe = replace(probe, body={**probe.body, "max_tokens": 10**9})
        return self._either(probe)

    def chat(self, size: int | None = None) -> Ask:
        """A question with some text before it, greedy or not."""
        size = self._size() if size is None else size
        messages = [{"role": "user", "content": self.texts.any(size)}]
        if self.draw.random() < 0.3:
            messages.insert(0, {"role": "system", "content": self.texts.any(60)})
        output = self.draw.choice(OUTPUTS)
        body = {"messages": messages, "max_tokens": output, **self._sampling()}
        return Ask(kind="chat", path=CHAT, body=body, must=Answered(output_most=output))

    def completion(self) -> Ask:
        """Token ids: the counts are known exactly."""
        size, output = self._size(), self.draw.choice(OUTPUTS)
        body = {
            "prompt": self.texts.token_ids(size),
            "max_tokens": output,
            "ignore_eos": True,
            **self._sampling(),
        }
        must = Answered(prompt_tokens=size, output_tokens=output)
        return Ask(kind="completion", path=COMPLETIONS, body=body, must=must)

    def short(self) -> Ask:
        """One of a crowd."""
        return self._either(replace(self.chat(size=5), kind="burst"))

    def follow_up(self, messages: list[dict[str, str]]) -> Ask:
        """The next turn of a conversation."""
        body = {"messages": messages, "max_tokens": 24, **self._sampling()}
        ask = Ask(kind="turn", path=CHAT, body=body, must=Answered(output_most=24))
        return self._either(ask)

    def opening(self) -> list[dict[str, str]]:
        """The messages of a probe: conversations share its pages."""
        chats = [probe for probe in self._probes if probe.path == CHAT]
        body = self.draw.choice(chats).body
        assert isinstance(body, Mapping)
        return [dict(message) for message in body["messages"]]

    def _several(self) -> Ask:
        count = self.draw.randint(2, min(4, self._most_prompts))
        prompts = [self.texts.token_ids(self.draw.randint(1, 200)) for _ in range(count)]
        body = {"prompt": prompts, "max_tokens": 8, "ignore_eos": True, **self._sampling()}
        must = Answered(
            choices=count, prompt_tokens=sum(map(len, prompts)), output_tokens=8 * count
        )
        return Ask(kind="several", path=COMPLETIONS, body=body, must=must)

    def _stopped(self) -> Ask:
        stops = self.draw.choice(STOPS)
        body = {
            "prompt": self.texts.english(40),
            "max_tokens": 60,
            "stop": list(stops),
            "ignore_eos": True,
            **self._sampling(),
        }
        must = Answered(output_most=60, forbidden=stops)
        return Ask(kind="stop", path=COMPLETIONS, body=body, must=must)

    def _at_the_limit(self) -> Ask:
        """The longest prompts that are taken; what they may produce is lowered."""
        left = self.draw.choice((1, 1, 2, 10))
        size = self._context - left
        asked = self.draw.choice((1, 32_000, 2**40))
        body = {
            "prompt": self.texts.token_ids(size),
            "max_tokens": asked,
            "ignore_eos": True,
            "temperature": 0,
        }
        must = Answered(prompt_tokens=size, output_tokens=min(left, asked))
        return Ask(kind="limit", path=COMPLETIONS, body=body, must=must)

    def _leaving_a_stream(self) -> Ask:
        ask = self.draw.choice((self.chat, self._long_answer))()
        leave = self.draw.choice(
            (
                Leave(after="silence", delay_s=0.05 * self.draw.random()),
                Leave(after="silence", delay_s=self.draw.random()),
                Leave(after="role", delay_s=0.05 * self.draw.random()),
                Leave(after="text", delay_s=0.2 * self.draw.random()),
                Leave(after="text", delay_s=0, count=self.draw.randint(1, 40)),
            )
        )
        return replace(streamed(ask, stream=True), kind="leaves a stream", leave=leave)

    def _leaving_a_whole_answer(self) -> Ask:
        ask = self.draw.choice((self.chat, self._long_answer))()
        leave = Leave(
            after="silence", delay_s=self.draw.choice((0.02, 0.3, 1.5)) * self.draw.random()
        )
        return replace(ask, kind="leaves a whole answer", leave=leave)

    def _leaving_a_prefill(self) -> Ask:
        """Chat streams say when they are admitted: what follows is the prefill, some ms a token."""
        ask = self.chat(size=self._longest)
        leave = Leave(after="role", delay_s=self._longest / 2000 * self.draw.random())
        return replace(streamed(ask, stream=True), kind="leaves a prefill", leave=leave)

    def _long_answer(self) -> Ask:
        size = self._size()
        body = {
            "prompt": self.texts.token_ids(size),
            "max_tokens": 300,
            "ignore_eos": True,
            **self._sampling(),
        }
        must = Answered(output_tokens=min(300, self._context - size))
        return Ask(kind="long answer", path=COMPLETIONS, body=body, must=must)

    def _either(self, ask: Ask) -> Ask:
        return streamed(ask, stream=self.draw.random() < 0.5)

    def _size(self) -> int:
        """Tokens, roughly: one to a few thousand, most of them few."""
        return max(1, int(self._longest ** self.draw.random()))

    def _sampling(self) -> dict[str, Any]:
        return self.draw.choice(
            (
                {"temperature": 0},
                {"temperature": 0.8, "seed": self.draw.randrange(2**40)},
                {"temperature": 1.5, "top_p": 0.9, "top_k": 40},
                {"temperature": 1, "min_p": 0.05, "top_k": -1, "seed": -1},
                {},
            )
        )


def refusals(context: int, model: str, most_prompts: int) -> tuple[Ask, ...]:
    """Requests that must be refused, each with its status and code."""
    user = [{"role": "user", "content": "What is a river?"}]
    chats: tuple[tuple[int, str, Any], ...] = (
        (400, "invalid_json", b""),
        (400, "invalid_json", b'{"messages": [{"role": "user", "content": "half'),
        (400, "invalid_json", b'[{"role": "user"}]'),
        (400, "invalid_json", b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'),
        (400, "invalid_json", b'{"messages": [{"role": "user", "content": "\xff"}]}'),
        (400, "invalid_json", NESTED),
        (400, "invalid_value", {"messages": "hello"}),
        (400, "invalid_value", {"messages": []}),
        (400, "invalid_value", {}),
        (400, "invalid_value", {"messages": user, "max_tokens": 0}),
        (400, "invalid_value", {"messages": user, "max_tokens": "many"}),
        (400, "invalid_value", {"messages": user, "temperature": -1}),
        (400, "invalid_value", {"messages": user, "stop": 17 * ["a"]}),
        (400, "invalid_value", {"messages": user, "stop": ""}),
        (400, "invalid_messages", {"messages": [{"role": "assistant", "content": "x"}]}),
        (400, "unsupported_parameter", {"messages": user, "n": 2}),
        (400, "unsupported_parameter", {"messages": user, "logprobs": True}),
        (404, "model_not_found", {"messages": user, "model": f"not-{model}"}),
    )
    ids = [FIRST_PLAIN_TOKEN + number % 1000 for number in range(context)]
    completions: tuple[tuple[int, str, Any], ...] = (
        (400, "invalid_value", {"prompt": []}),
        (400, "invalid_value", {"prompt": ""}),
        (400, "invalid_value", {"prompt": [1, "a"]}),
        (400, "invalid_value", {"prompt": [2**31 - 1]}),
        (400, "invalid_value", {"prompt": [-1]}),
        (400, "invalid_value", {"prompt": (most_prompts + 1) * ["a"]}),
        (400, "context_length_exceeded", {"prompt": ids}),
        (400, "context_length_exceeded", {"prompt": ids, "stream": True, "max_tokens": 1}),
        (400, "context_length_exceeded", {"prompt": ["a", context * "long "]}),
    )
    others = (
        Ask(
            kind="refused",
            path="/v1/nothing",
            body={},
            must=Refused(status=404, code="not_found"),
        ),
        Ask(
            kind="refused",
            path=CHAT,
            body=b"",
            method="GET",
            must=Refused(status=405, code="not_allowed"),
        ),
    )
    made = [
        Ask(kind="refused", path=path, body=body, must=Refused(status=status, code=code))
        for path, cases in ((CHAT, chats), (COMPLETIONS, completions))
        for status, code, body in cases
    ]
    return (*made, *others)
