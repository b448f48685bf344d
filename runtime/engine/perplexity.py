"""Whether weights are read right: how well the engine predicts a text that any model of English knows something of.

A scale, a norm or an order of experts that is read wrong gives finite logits and fluent nonsense; the perplexity of a
text gives it away. The text goes through the plan's `prefill` as any prompt does. `head` then runs once more for
every row, a few at a time, in the places that it has for the last rows of sequences: no memory beside the plan's.
"""

import math
from collections.abc import Sequence as Items

import torch

from firmtoken.compiler.admission import need
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.batches import SPAN, BatchBuilder, Cut, cut_rows
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.launches import Launch
from firmtoken.runtime.engine.messages import GREEDY, Add
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Piece, PrefillProgram, Span
from firmtoken.runtime.memory.pages import SENTINEL_PAGE

PROGRAM: PrefillProgram = "prefill"
LARGEST_MEAN = 700.0
"""Beyond it exp overflows; weights that are read right never come near."""
LIVE, SHADOW = 1, 2
"""State slots: slot 0 is that of padded rows, and nobody else has any yet."""


def read_perplexity(
    plan: Plan, interpreter: Interpreter, token_ids: Items[int], counted: Items[bool]
) -> float:
    """exp of the mean of -ln p(token | those before it), over the `counted` tokens; the first cannot be.

    1 is certainty, the vocabulary's size is knowing nothing. Nothing else may run; the pool must hold all tokens.
    """
    sequence = _sequence(plan, token_ids)
    step = min(plan.schedule.moe_chunk, plan.schedule.prefill_span)
    builder = interpreter.batch_builder()
    surprises: list[float] = []
    for start in range(0, len(token_ids), step):
        end = min(start + step, len(token_ids))
        surprises += _surprises(plan, interpreter, builder, sequence, start, end)
    kept = [surprise for surprise, counts in zip(surprises, counted[1:], strict=True) if counts]
    mean = math.fsum(kept) / len(kept)
    return math.exp(mean) if mean < LARGEST_MEAN else math.inf


def holds(plan: Plan, num_tokens: int) -> bool:
    """Whether the plan's pages can hold a text of this length."""
    return need(num_tokens, 0, plan.kv_cache.page_size) < plan.kv_cache.pages


def _sequence(plan: Plan, token_ids: Items[int]) -> Sequence:
    add = Add(
        request_id=0,
        token_ids=list(token_ids),
        max_output=1,
        sampling=GREEDY,
        stop_token_ids=[],
    )
    sequence = Sequence.of(add, 0)
    num_pages = need(len(token_ids), 0, plan.kv_cache.page_size)
    sequence.pages = tuple(range(SENTINEL_PAGE + 1, SENTINEL_PAGE + 1 + num_pages))
    if plan.kv_cache.state_slots:
        sequence.live, sequence.shadow = LIVE, SHADOW
    return sequence


def _surprises(
    plan: Plan,
    interpreter: Interpreter,
    builder: BatchBuilder | DeviceBatches,
    sequence: Sequence,
    start: int,
    end: int,
) -> list[float]:
    """-ln p of each token that rows [start, end) predict; one run of the program, of one chunk."""
    final = end == len(sequence.token_ids)
    piece = Piece(sequence=sequence, start=start, end=end, final=final, boundary=0)
    schedule = plan.schedule
    cut = cut_rows(end - start, 1, chunk=schedule.moe_chunk, tile=schedule.mixer_tile)
    batches = builder.span(Span(program=PROGRAM, pieces=(piece,)), cut)
    interpreter.run(PROGRAM, cut, batches)
    interpreter.drain()
    targets = torch.tensor(sequence.token_ids[start + 1 : end + 1])
    surprises: list[float] = []
    with torch.inference_mode():
        copy, head = _tail(interpreter, cut, schedule.max_num_seqs)
        hidden = interpreter.views.tensor(copy.step.operands["source"])
        last = interpreter.views.tensor(copy.step.operands["target"])
        logits = interpreter.views.tensor(head.step.operands["logits"])
        for first in range(0, len(targets), schedule.max_num_seqs):
            wanted = targets[first : first + schedule.max_num_seqs]
            last[: len(wanted)].copy_(hidden[first : first + len(wanted)])
            head.call(batches[SPAN])
            found = logits[: len(wanted)].cpu().double()  # [S,V]
            picked = found.gather(1, wanted[:, None]).squeeze(1)
            surprises += (found.logsumexp(dim=1) - picked).tolist()
    return surprises


def _tail(interpreter: Interpreter, cut: Cut, num_seqs: int) -> tuple[Launch, Launch]:
    """What brings rows to `head`, and `head` itself for as many rows as it ever gets."""
    bound = interpreter.bind(PROGRAM, Cut(chunks=cut.chunks, num_seqs=num_seqs))
    launches = [item for item in bound if isinstance(item, Launch)]
    [copy] = [item for item in launches if item.step.step.op == "copy"]
    [head] = [item for item in launches if item.step.step.op == "head"]
    return copy, head
