"""What a template writes of a past call, the dialect reads back: the families' formats from both sides."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.runtime.dialects.reading import arguments, deltas

from firmtoken.runtime.dialects.chatml import ChatTemplate
from firmtoken.runtime.dialects.registry import find_dialect
from firmtoken.runtime.dialects.schemas import ToolSchemas

AMBIGUOUS = re.compile(r"</parameter>\s*(<parameter|</function>|</invoke>|</tool_call>|</minimax:)")
"""In a value without quotes this looks like its end: nobody can tell."""
NAMES = ["qwen3", "qwen3_5", "minimax_m2"]
TEMPLATES = {
    name: ChatTemplate(
        (Path(__file__).parent / "templates" / f"{name}.jinja").read_text(),
        special_tokens={},
        now=lambda: datetime(2026, 1, 2),
    )
    for name in NAMES
}
TYPES = {"s": "string", "n": "number", "b": "boolean", "l": "array", "o": "object", "z": "null"}
SCHEMAS = ToolSchemas(
    {"f": {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}}}
)
TEXT = st.text(st.characters(codec="utf-8")) | st.lists(
    st.sampled_from(
        [
            "</parameter>",
            "\n",
            " ",
            "a",
            "<parameter=s>",
            "</tool_call>",
            "</think>",
            '"',
            "\\",
            "}",
        ]
    )
).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
CALLED = st.fixed_dictionaries(
    {},
    optional={
        "s": TEXT,
        "n": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "l": st.lists(JSON, max_size=3),
        "o": st.dictionaries(TEXT, JSON, max_size=3),
        "z": st.none(),
    },
)


@pytest.mark.parametrize("name", NAMES)
@given(called=st.lists(CALLED, min_size=1, max_size=3))
def test_calls_are_read_as_they_were_made(name: str, called: list[dict[str, Any]]) -> None:
    written = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for each in called
        for value in each.values()
    ]
    assume(name == "qwen3" or not any(map(AMBIGUOUS.search, written)))
    calls = [{"type": "function", "function": {"name": "f", "arguments": each}} for each in called]
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "I call.", "reasoning_content": "so", "tool_calls": calls},
    ]
    text = TEMPLATES[name].render(chat, add_generation_prompt=False, variables={})
    answer = text[text.index("<think>") :]
    answer = answer[: answer.rindex("<|im_end|>" if "im_end" in answer else "[e~[")]
    found = deltas(find_dialect(name), [answer], tools=SCHEMAS)
    assert arguments(found) == called
