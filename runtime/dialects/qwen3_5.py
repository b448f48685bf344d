"""Qwen3.5 and Qwen3.6: ChatML turns, calls as a tag per parameter, values without quotes.

Turns are `<|im_start|>ROLE\\n...<|im_end|>\\n`; both end ids stand in generation_config.json (config.json names
only `<|endoftext|>`, with which an answer would run through the end of its turn). The prompt opens the thought, or
holds an empty one where `enable_thinking` is false.
"""

from functools import partial

from firmtoken.runtime.dialects.dialect import CallBlock, Dialect
from firmtoken.runtime.dialects.tagged_calls import CallTags, TaggedCalls

TAGS = CallTags(
    block="<tool_call>",
    end_block="</tool_call>",
    call="<function=",
    end_call="</function>",
    parameter="<parameter=",
    end_parameter="</parameter>",
    head_end=">",
    padded=True,
)
QWEN3_5 = Dialect(
    name="qwen3_5",
    end_of_turn="<|im_end|>",
    call_tags=(TAGS.block, TAGS.end_block),
    block=CallBlock(begin=TAGS.block, end=TAGS.end_block, opening=TAGS.call),
    past_arguments="mapping",
    calls=partial(TaggedCalls, TAGS),
)
