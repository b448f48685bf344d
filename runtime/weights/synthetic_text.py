"""The text side of a synthetic checkpoint: a byte-level tokenizer with a dialect's own control tokens at their own ids.

The published tokenizers are not here. This one writes each byte as one token and each word of its vocabulary, which
is made up (` aabc`), as one: any text comes back as it was, and a prompt of exactly so many tokens is easily written.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers.pre_tokenizers import ByteLevel

from firmtoken.runtime.weights.errors import LoadError
from firmtoken.schema.model import Model

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"
SPACE = "Ġ"
"""How a byte-level vocabulary writes a blank."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedText:
    """What is known of a dialect's published files (facts/models.md 5.1-5.3)."""

    special: Mapping[int, str]
    """Control tokens that a reader never sees, by id."""
    visible: Mapping[int, str]
    """Added tokens that decoding shows."""
    stops: tuple[int, ...]
    padding: int
    template: str
    """Its turns only: tools and thinking are a matter of the published one."""
    temperature: float
    top_p: float
    top_k: int


CONTENT = (
    "(message.content if message.content is string"
    " else message.content | map(attribute='text') | join)"
)
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + " + CONTENT + " + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MINIMAX = (
    "{{ ']~!b[' }}{% for message in messages %}"
    "{{ ']~b]' + ('ai' if message.role == 'assistant' else message.role) + '\\n' + "
    + CONTENT
    + " + '[e~[\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ']~b]ai\\n' }}{% endif %}"
)
PUBLISHED: Mapping[str, PublishedText] = {
    "qwen3_5": PublishedText(
        special={
            248044: "<|endoftext|>",
            248045: "<|im_start|>",
            248046: "<|im_end|>",
            248053: "<|vision_start|>",
            248054: "<|vision_end|>",
            248055: "<|vision_pad|>",
            248056: "<|image_pad|>",
            248057: "<|video_pad|>",
        },
        visible={
            248058: "<tool_call>",
            248059: "</tool_call>",
            248066: "<tool_response>",
            248067: "</tool_response>",
            248068: "<think>",
            248069: "</think>",
        },
        stops=(248046, 248044),
        padding=248044,
        template=CHATML,
        temperature=1.0,
        top_p=0.95,
        top_k=20,
    ),
    "qwen3": PublishedText(
        special={151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"},
        visible={
            151657: "<tool_call>",
            151658: "</tool_call>",
            151665: "<tool_response>",
            151666: "</tool_response>",
            151667: "<think>",
            151668: "</think>",
        },
        stops=(151645, 151643),
        padding=151643,
        template=CHATML,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
    ),
    "minimax_m2": PublishedText(
        special={
            200000: "]!p~[",
            200019: "]~b]",
            200020: "[e~[",
            200021: "]!d~[",
            200034: "]~!b[",
        },
        visible={
            200050: "<think>",
            200051: "</think>",
            200052: "<minimax:tool_call>",
            200053: "</minimax:tool_call>",
        },
        stops=(200020,),
        padding=200000,
        template=MINIMAX,
        temperature=1.0,
        top_p=0.95,
        top_k=40,
    ),
}


def text_files(model: Model) -> dict[str, str]:
    """File name -> content; raises `LoadError` where the vocabulary has no room for it.

    In a vocabulary that ends before the published ids (a small geometry), control tokens are its last ones.
    """
    text = PUBLISHED[model.dialect]
    added = {**text.special, **text.visible}
    rows = model.geometry.vocab_size
    shift = min(0, rows - 1 - max(added))
    alphabet = sorted(ByteLevel.alphabet())
    if min(added) + shift < len(alphabet):
        raise LoadError(
            file=TOKENIZER,
            expected=f"at least {len(alphabet) + max(added) - min(added) + 1} rows of vocabulary",
            found=f"{rows}",
            hint="raise `model.geometry.vocab_size`: every byte and every control token is one",
        )
    added = {token + shift: content for token, content in added.items()}
    return {
        TOKENIZER: _json(_tokenizer(added, frozenset(text.visible.values()), alphabet)),
        TOKENIZER_CONFIG: _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": None,
                "eos_token": added[text.stops[0] + shift],
                "pad_token": added[text.padding + shift],
                "model_max_length": model.geometry.max_position_embeddings,
            }
        ),
        TEMPLATE: text.template,
        GENERATION: _json(
            {
                "do_sample": True,
                "eos_token_id": [token + shift for token in text.stops],
                "pad_token_id": text.padding + shift,
                "temperature": text.temperature,
                "top_p": text.top_p,
                "top_k": text.top_k,
            }
        ),
    }


def _tokenizer(
    added: Mapping[int, str], visible: frozenset[str], alphabet: list[str]
) -> dict[str, object]:
    words = _words(max(added))
    ordinary = (*alphabet, *(next(words) for _ in range(len(alphabet), max(added) + 1)))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": content not in visible,
            }
            for token, content in sorted(added.items())
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # A word that is a token becomes that token, though no merge leads there.
            "ignore_merges": True,
            "vocab": {added.get(token, word): token for token, word in enumerate(ordinary)},
            "merges": [],
        },
    }


def _words(count: int) -> Iterator[str]:
    """As many different words of equal length, or more."""
    length = 1
    while len(LETTERS) ** length < count:
        length += 1
    number = 0
    while True:
        digits, rest = "", number
        for _ in range(length):
            rest, digit = divmod(rest, len(LETTERS))
            digits = LETTERS[digit] + digits
        yield SPACE + digits
        number += 1


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"
