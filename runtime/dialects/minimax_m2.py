"""MiniMax-M2: turns from `]~b]ROLE` to `[e~[`, several calls in one block, values without quotes.

The prompt always opens the thought; there is no switch. Past thoughts behind the last user's turn belong into the
history, so clients should send them back.
"""

from functools import partial

from firmtoken.runtime.dialects.dialect import CallBlock, Dialect
from firmtoken.runtime.dialects.tagged_calls import CallTags, TaggedCalls

TAGS = CallTags(
    block="<minimax:tool_call>",
    end_block="</minimax:tool_call>",
    call='<invoke name="',
    end_call="</invoke>",
    parameter='<parameter name="',
    end_parameter="</parameter>",
    head_end='">',
    padded=False,
)
MINIMAX_M2 = Dialect(
    name="minimax_m2",
    end_of_turn="[e~[",
    call_tags=(TAGS.block, TAGS.end_block),
    block=CallBlock(begin=TAGS.block, end=TAGS.end_block, opening=TAGS.call),
    past_arguments="mapping",
    calls=partial(TaggedCalls, TAGS),
)
