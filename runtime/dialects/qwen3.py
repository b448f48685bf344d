"""Qwen3: ChatML turns, calls as one JSON object each.

The model itself opens its thought; where `enable_thinking` is false the prompt holds an empty one. Instruct-2507
never thinks, Thinking-2507's template opens the thought: the prompt tells them apart, not the name.
"""

from firmtoken.runtime.dialects.dialect import CallBlock, CallReader, Dialect
from firmtoken.runtime.dialects.json_calls import JsonCalls
from firmtoken.runtime.dialects.schemas import ToolSchemas

BLOCK = CallBlock(begin="<tool_call>", end="</tool_call>", opening="{")


def read_calls(tools: ToolSchemas) -> CallReader:
    """The arguments are JSON: no schema is needed to read them."""
    return JsonCalls(BLOCK.begin, BLOCK.end)


QWEN3 = Dialect(
    name="qwen3",
    end_of_turn="<|im_end|>",
    call_tags=(BLOCK.begin, BLOCK.end),
    block=BLOCK,
    past_arguments="text",
    calls=read_calls,
)
