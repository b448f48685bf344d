"""`Sequence`: one stream of tokens, what it holds, and how far it is."""

from dataclasses import dataclass
from enum import Enum

from firmtoken.runtime.engine.messages import Add, FinishReason, Sampling
from firmtoken.runtime.memory.prefix_cache import Node
from firmtoken.runtime.memory.shortage import Shortage


class Phase(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """One request in the engine. `token_ids` is its text: prompt and what was drawn."""

    request_id: int
    arrival: int
    """Order of arrival: the greater, the younger."""
    prompt_tokens: int
    token_ids: list[int]
    max_output: int
    sampling: Sampling
    stop_token_ids: frozenset[int]
    phase: Phase = Phase.WAITING
    computed: int = 0
    """Tokens whose KV and states are committed."""
    target: int = 0
    """Tokens that this prefill computes: the whole text when it was admitted."""
    pages: tuple[int, ...] = ()
    live: int = 0
    shadow: int = 0
    shadow_len: int = 0
    """Tokens that the shadow state covers: a multiple of the page size; 0 = the shadow holds nothing."""
    node: Node | None = None
    """What it has locked in the prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""
    hit_tokens: int = 0
    """Tokens that this admission found."""
    hit_snapshot: int | None = None
    """Where the states of the hit are; None = states start from zero."""
    reserved: int = 0
    """Pages that it may grow to without asking."""
    whole: bool = False
    """Its whole need is reserved: it is never preempted."""
    starts: int = 0
    """How often it was admitted."""
    preemptions: int = 0
    passed: int = 0
    """How often a younger one was admitted before it."""
    shortage: Shortage | None = None
    """Why it waits."""
    refused_at: int | None = None
    """Version of the holdings that had no room for it."""

    @classmethod
    def of(cls, add: Add, arrival: int) -> "Sequence":
        """A request as it came."""
        return cls(
            request_id=add.request_id,
            arrival=arrival,
            prompt_tokens=len(add.token_ids),
            token_ids=list(add.token_ids),
            max_output=add.max_output,
            sampling=add.sampling,
            stop_token_ids=frozenset(add.stop_token_ids),
        )

    @property
    def output_tokens(self) -> int:
        """Tokens drawn so far."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def remaining_output(self) -> int:
        """Tokens that may still be drawn."""
        return self.max_output - self.output_tokens

    def finish_reason(self) -> FinishReason | None:
        """Why its last token is the last; None if it is not."""
        if self.token_ids[-1] in self.stop_token_ids and self.output_tokens:
            return "stop"
        return "length" if self.remaining_output <= 0 else None
