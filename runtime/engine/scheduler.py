"""The scheduler: who is admitted, what the next step works on, who gives way. Knows no torch, no clock, no device.

First come, first served. A request that waits for pages may be passed by those that fit, a few times. When pages run
out, the prefix cache gives way, then the youngest sequence whose whole need is not reserved; it comes back first.
"""

from bisect import insort
from collections.abc import Mapping

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.holdings import Holdings, Park
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import (
    Admitted,
    Done,
    FinishReason,
    Log,
    Preempted,
    Tokens,
    Up,
)
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.engine.work import Decode, Span, form_span
from firmtoken.runtime.memory.shortage import NoSequences, NoStateSlots, Shortage

Drawn = Mapping[int, int]
"""Request id -> token."""


class Scheduler:
    """Owns all sequences; messages about them are collected by `collect`."""

    def __init__(self, limits: Limits, park: Park) -> None:
        self.limits = limits
        self.holdings = Holdings(limits, park)
        self.waiting: list[Sequence] = []
        """Those that gave way first, else by arrival."""
        self.open_span: Span | None = None
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self._sequences: dict[int, Sequence] = {}
        self._decode_is_due = False
        self._messages: list[Up] = []

    @property
    def idle(self) -> bool:
        """Nothing to do until a message comes."""
        return not self._sequences

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """All that have not ended, by arrival."""
        return tuple(self._sequences.values())

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Admitted sequences, oldest first."""
        return tuple(self.holdings.members)

    def add(self, sequence: Sequence) -> None:
        """Queues a request, or ends it at once if it could never finish."""
        self._sequences[sequence.request_id] = sequence
        if not sequence.prompt_tokens:
            self._end(sequence, "error", "the prompt is empty: a request needs at least one token")
            return
        total = sequence.prompt_tokens + sequence.max_output
        pages = need(sequence.prompt_tokens, sequence.max_output, self.limits.page_size)
        if total > self.limits.effective_context or pages > self.limits.usable_pages:
            self._end(
                sequence,
                "error",
                f"{total} tokens need {pages} pages; the context is {self.limits.effective_context} tokens "
                f"and the pool has {self.limits.usable_pages} pages",
            )
            return
        self._queue(sequence)

    def abort(self, request_id: int) -> None:
        """Ends a request in whatever phase it is; a request that ended already is none of our business."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._leave(sequence, "abort", "")

    def fail(self, sequence: Sequence, message: str) -> None:
        """Ends a request that could not be computed; nothing of it is cached."""
        self._leave(sequence, "error", message)

    def distrust_cache(self) -> None:
        """What is cached is found no more; who found some of it and has not begun starts over without."""
        self.holdings.retire_cache()
        begun = [] if self.open_span is None else [piece.sequence for piece in self.open_span.kept]
        for sequence in self._in_phase(Phase.PREFILL):
            found = sequence.hit_tokens and sequence.computed == sequence.hit_tokens
            if found and sequence not in begun:
                self._start_over(sequence)

    def abandon_span(self) -> tuple[Sequence, ...]:
        """The open span did not go through: nobody in it got any further. Those who are still there."""
        span, self.open_span = self.open_span, None
        return () if span is None else tuple(piece.sequence for piece in span.kept)

    def abort_all(self) -> None:
        """Ends every request."""
        for request_id in tuple(self._sequences):
            self.abort(request_id)

    def schedule(self) -> Span | Decode | None:
        """The next step's work; None when there is nothing to compute now.

        That may be while somebody waits: if the only one that could go on has just given way, the next call has work.
        """
        self._admit()
        prefilling = self._in_phase(Phase.PREFILL)
        if prefilling and not (self._decode_is_due and self._in_phase(Phase.DECODE)):
            self._decode_is_due = True
            return self._open(form_span(prefilling, self.limits))
        self._decode_is_due = False
        return self._batch(self._grow_all())

    def decode_at_yield(self) -> Decode | None:
        """A decode step inside the open span: those that can go on without preempting anybody."""
        ready = []
        for sequence in self._in_phase(Phase.DECODE):
            num_tokens = len(sequence.token_ids)
            if self.holdings.can_cover(sequence, num_tokens):
                # Now: the next one counts what this one took.
                self.holdings.cover(sequence, num_tokens)
                ready.append(sequence)
        return self._batch(ready)

    def following(self, decode: Decode) -> Decode | None:
        """The step after `decode`, whose tokens nobody has seen yet: the same sequences once more, with room for it.

        None where it may not be that: somebody is to be admitted or prefills, one of them draws its last token now,
        or room would have to be made. Nor is a shadow renewed ahead: who ends with the token before it keeps the older.
        """
        self._admit()
        if tuple(self.holdings.members) != decode.sequences:
            return None
        for sequence in decode.sequences:
            if sequence.remaining_output <= 1 or self._renews_shadow(sequence.computed + 1):
                return None
            num_tokens = len(sequence.token_ids) + 1
            if not self.holdings.can_cover(sequence, num_tokens):
                return None
            self.holdings.cover(sequence, num_tokens)
        return Decode(sequences=decode.sequences, size=decode.size, ahead=True)

    def complete_span(self, span: Span, drawn: Drawn) -> None:
        """The span went through: commit lengths, cache prefixes, take over the drawn tokens."""
        self.open_span = None
        for piece in span.kept:
            sequence = piece.sequence
            sequence.computed = piece.end
            if self.limits.hybrid and piece.boundary:
                sequence.shadow_len = piece.boundary
        finals = tuple(piece.sequence for piece in span.kept if piece.final)
        for sequence in finals:
            sequence.phase = Phase.DECODE
        self._tell(finals, drawn)
        self.holdings.offer([piece.sequence for piece in span.kept])
        self._append(finals, drawn)

    def complete_decode(self, decode: Decode, drawn: Drawn) -> None:
        """The batch's last tokens are in the cache now, and each drew one more."""
        for sequence in decode.sequences:
            renewed = self._renews_shadow(sequence.computed)
            sequence.computed += 1
            if renewed:
                sequence.shadow_len = sequence.computed
        self._tell(decode.sequences, drawn)
        self._append(decode.sequences, drawn)

    def collect(self) -> list[Up]:
        """Messages since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def _in_phase(self, phase: Phase) -> list[Sequence]:
        return [sequence for sequence in self.holdings.members if sequence.phase is phase]

    def _renews_shadow(self, position: int) -> bool:
        """Whether the token there is the last of its page, after which a decode step keeps the state."""
        return self.limits.hybrid and (position + 1) % self.limits.page_size == 0

    def _queue(self, sequence: Sequence) -> None:
        sequence.phase = Phase.WAITING
        sequence.shortage = sequence.refused_at = None
        insort(self.waiting, sequence, key=lambda one: (one.preemptions == 0, one.arrival))

    def _admit(self) -> None:
        ahead: list[Sequence] = []
        for sequence in tuple(self.waiting):
            if any(one.passed >= self.limits.max_passes for one in ahead):
                return
            shortage = self._try_to_admit(sequence)
            if isinstance(shortage, NoSequences | NoStateSlots):
                return
            if shortage is not None:
                ahead.append(sequence)
                continue
            # It counts for everybody who is passed: who gave way is the head, and would shield the second for ever.
            for one in ahead:
                one.passed += 1
        if self.waiting and not self.holdings.members:
            self._end(self.waiting[0], "error", "refused by an engine in which nothing runs")

    def _try_to_admit(self, sequence: Sequence) -> Shortage | None:
        """Admits, or says what is short; does not ask twice while nothing was given back."""
        if sequence.refused_at == self.holdings.version:
            return sequence.shortage
        try:
            self.holdings.admit(sequence)
        except Shortage as shortage:
            if sequence.shortage is None:
                line = f"request {sequence.request_id} waits, {len(self.waiting)} in the queue: {shortage}"
                self._messages.append(Log(line=line))
            sequence.shortage = shortage.with_traceback(None)
            sequence.refused_at = self.holdings.version
            return shortage
        self._start(sequence)
        return None

    def _start_over(self, sequence: Sequence) -> None:
        self.holdings.release(sequence)
        self._queue(sequence)
        self._messages.append(Preempted(request_id=sequence.request_id))
        line = f"request {sequence.request_id} starts over: what it found in the cache is in doubt"
        self._messages.append(Log(line=line))

    def _start(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        sequence.phase = Phase.PREFILL
        self.holdings.members.sort(key=lambda member: member.arrival)
        resumed = sequence.starts > 0
        sequence.starts += 1
        if not resumed:
            sequence.cached_tokens = sequence.hit_tokens
            self.prompt_tokens += sequence.prompt_tokens
            self.cached_tokens += sequence.cached_tokens
        self._messages.append(
            Admitted(
                request_id=sequence.request_id,
                cached_tokens=min(sequence.hit_tokens, sequence.prompt_tokens),
                pages=self.holdings.wanted(sequence),
                waiting=len(self.waiting),
                resumed=resumed,
            )
        )

    def _open(self, span: Span) -> Span:
        for piece in span.pieces:
            self.holdings.cover(piece.sequence, piece.end)
        self.open_span = span
        return span

    def _batch(self, sequences: list[Sequence]) -> Decode | None:
        if not sequences:
            return None
        return Decode(sequences=tuple(sequences), size=self.limits.padded(len(sequences)))

    def _grow_all(self) -> list[Sequence]:
        """Decoding sequences, each with room for its next token; the youngest give way, oldest are served first."""
        ready = []
        for sequence in self._in_phase(Phase.DECODE):
            num_tokens = len(sequence.token_ids)
            while sequence.phase is Phase.DECODE:
                if self.holdings.can_cover(sequence, num_tokens):
                    self.holdings.cover(sequence, num_tokens)
                    ready.append(sequence)
                    break
                self._preempt_youngest(sequence)
        return ready

    def _preempt_youngest(self, wanting: Sequence) -> None:
        # `wanting` grows beyond what it reserved, so it is one of them; whoever is ready already is older.
        youngest = max(
            (member for member in self.holdings.members if not member.whole),
            key=lambda member: member.arrival,
        )
        if self.holdings.members == [wanting]:
            self._end(
                wanting,
                "error",
                f"no page left for token {len(wanting.token_ids)} of the only running request: "
                f"{need(len(wanting.token_ids), 0, self.limits.page_size)} pages needed, "
                f"{len(wanting.pages)} held, {self.holdings.available} available",
            )
            return
        self.holdings.offer([youngest])
        self.holdings.release(youngest)
        youngest.preemptions += 1
        self.preemptions += 1
        self._queue(youngest)
        self._messages.append(Preempted(request_id=youngest.request_id))
        line = f"request {youngest.request_id} gives way to {wanting.request_id} at token {len(youngest.token_ids)}"
        self._messages.append(Log(line=line))

    def _tell(self, sequences: tuple[Sequence, ...], drawn: Drawn) -> None:
        """Before anything is kept for later requests: copies of states take longer than a client should wait."""
        items = [(sequence.request_id, drawn[sequence.request_id]) for sequence in sequences]
        if items:
            self._messages.append(Tokens(items=items))

    def _append(self, sequences: tuple[Sequence, ...], drawn: Drawn) -> None:
        self.output_tokens += len(sequences)
        ended: list[tuple[Sequence, FinishReason]] = []
        for sequence in sequences:
            sequence.token_ids.append(drawn[sequence.request_id])
            reason = sequence.finish_reason()
            if reason is not None:
                ended.append((sequence, reason))
        self.holdings.offer([sequence for sequence, _ in ended])
        for sequence, reason in ended:
            self._end(sequence, reason, "")

    def _leave(self, sequence: Sequence, reason: FinishReason, message: str) -> None:
        if self.open_span is not None and sequence.phase is Phase.PREFILL:
            self.open_span.dropped.add(sequence.request_id)
        self._end(sequence, reason, message)

    def _end(self, sequence: Sequence, reason: FinishReason, message: str) -> None:
        if sequence.phase is Phase.WAITING and sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.holdings.members:
            self.holdings.release(sequence)
        sequence.phase = Phase.ENDED
        del self._sequences[sequence.request_id]
        self._messages.append(
            Done(
                request_id=sequence.request_id,
                reason=reason,
                message=message,
                prompt_tokens=sequence.prompt_tokens,
                cached_tokens=sequence.cached_tokens,
                output_tokens=sequence.output_tokens,
            )
        )
