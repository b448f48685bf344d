"""POST /v1/completions: texts, token ids, several prompts, streams."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from firmtoken.runtime.server.served_model import ServedModel

Serve = Callable[..., Any]


def test_a_text_is_continued_raw(serve: Serve) -> None:
    """The fake engine repeats the prompt, so no template and no special token was added."""
    answer = serve().client().completions.create(model="tiny", prompt="abc", max_tokens=6)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "abcabc"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == 3


def test_token_ids_are_taken_as_they_are(serve: Serve, served_model: ServedModel) -> None:
    ids = served_model.tokenizer.encode("né🙂")
    answer = serve().client().completions.create(model="tiny", prompt=ids, max_tokens=2 * len(ids))
    assert answer.choices[0].text == "né🙂né🙂"


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_give_a_choice_each(
    serve: Serve, served_model: ServedModel, as_ids: bool, stream: bool
) -> None:
    texts = ["ab", "cde", "f", "gh", "ij", "kl"]
    prompt: Any = [served_model.tokenizer.encode(text) for text in texts] if as_ids else texts
    answer = (
        serve()
        .client()
        .completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=6,
            stream=stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        )
    )
    found = dict.fromkeys(range(6), "")
    reasons: dict[int, str] = {}
    for message in answer if stream else [answer]:
        for choice in message.choices:
            found[choice.index] += choice.text
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert found == {index: (text * 6)[:6] for index, text in enumerate(texts)}
    assert reasons == dict.fromkeys(range(6), "length")
    usage = message.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (12, 36)


def test_a_stream_is_text_completion_chunks(serve: Serve) -> None:
    chunks = list(
        serve().client().completions.create(model="tiny", prompt="ab", max_tokens=4, stream=True)
    )
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abab"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*4 * [None], "length"]


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [""], ["a", 1], [[1], "a"], [1, [1]], 5, [1.5], [320], [[1, 4000]], [-1]],
)
def test_a_prompt_of_no_known_shape_is_refused(shared: Any, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        shared.client().completions.create(model="tiny", prompt=prompt)
    assert error.value.param.startswith("prompt")
    assert error.value.code == "invalid_value"


def test_thoughts_are_plain_text_in_a_raw_completion(serve: Serve) -> None:
    answer = (
        serve().client().completions.create(model="tiny", prompt="<think></think>x", max_tokens=10)
    )
    assert answer.choices[0].text.startswith("<think></think>x")
