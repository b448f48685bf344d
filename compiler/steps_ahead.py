"""Decode steps that are launched before the last one's tokens are read, as launches for the checker (D5).

What is ordered is what the runtime orders, and no more: the host writes a batch into pinned bytes once the copy before
has been made, one copy on `main` brings it over, and token ids that nobody has seen go from the last step to the next
on `main`. What a run draws goes to one of `UNDER_WAY` pinned places, and the host waits for nothing but that. A read
means the bytes of one run, so batches and tokens are numbered by it: whoever finds another run's is objected to.

Sequences have owners: 0 and 1 decode; 0 ends, and 2 gets its pages and states; 1 ends, and 3 gets those. A sequence
that has ended keeps a row in the step that is under way. Its shadow states are numbered by how often they were renewed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from firmtoken.compiler.happens_before import Launch
from firmtoken.compiler.plan import Programs
from firmtoken.compiler.program import Value
from firmtoken.compiler.race import Layout, Place
from firmtoken.compiler.sessions import (
    DRAWN,
    ENQUEUED,
    HOST,
    Cards,
    Composed,
    batch_of,
    compose,
    inline,
)
from firmtoken.compiler.unroll import unroll

UNDER_WAY = 2
"""Runs whose tokens may be on their way at once: a step, and the one launched ahead of its tokens."""

PINNED, TOKEN_IDS, DRAWN_TOKENS, SHADOW = "pinned.", "decode.token_ids", "pinned.tokens", "shadow."
SENT = "host.sent"
UNKNOWN = Value(TOKEN_IDS, (-1,))
"""What the host writes where it knows no token."""
SEATS = 2
"""Owner n + 2 gets the pages and states of owner n."""


class StepsAhead:
    """Issues runs as the engine does; `launches` is all of it, in issue order."""

    def __init__(
        self, programs: Programs, kinds: Sequence[str], cards: Cards, *, chunks: int = 1
    ) -> None:
        self.launches: list[Launch] = []
        self._programs, self._kinds, self._cards, self._chunks = programs, kinds, cards, chunks
        self._decode: Composed = compose(
            "decode", programs.decode, unroll(programs.decode, kinds), cards
        )
        self._park: tuple[Launch, ...] = ()
        if programs.park is not None:
            flat = unroll(programs.park, kinds)
            self._park = tuple(inline("park", programs.park, flat, cards))
        self._states = {value.name for launch in self._park for value in launch.reads}
        # Of a decode step, what has two indices has an owner.
        self._owned = {value.name for value in self._decode.writes if len(value.index) == 2}
        self._begun: set[Value] = set()
        """What somebody who was let in has written by now."""
        self._runs = 0
        self._untaken: list[tuple[int, tuple[int, ...]]] = []
        """Runs that the host has not read yet, and those whose shadows they renew."""
        self._renewals: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def decode(
        self, *owners: int, ahead: bool = False, renewing: Collection[int] = frozenset()
    ) -> None:
        """A step of these. `ahead`: its token ids are what the last run drew; `renewing`: who has filled a page."""
        step = self._decode.step(frozenset(), every_owner=False)
        self._launch_decode(step, owners, ahead=ahead, renewing=renewing)

    def take(self) -> None:
        """The host reads what the first run drew that it has not read yet."""
        run, renewed = self._untaken.pop(0)
        self._seen |= {owner: self._seen.get(owner, 0) + 1 for owner in renewed}
        self._host(f"take({run})", reads=(Value(DRAWN_TOKENS, (run,)),), waits=(_drawn(run),))

    def park(self, *owners: int) -> None:
        """Shadow states of these are copied, as old as the host knows them."""
        for launch in self._park:
            reads = tuple(
                _shadow(value.name, value.index[0], owner, self._seen.get(owner, 0))
                for value in launch.reads
                for owner in owners
            )
            self.launches.append(replace(launch, reads=reads))

    def span(self, name: str, owners: Collection[int], running: Collection[int] = ()) -> None:
        """A prefill or extend of `owners`; at each yield its batch anew, and a step of those that run, read at once."""
        program, long = dict(self._programs.named())[name], name == "prefill"
        chunks = self._chunks if long else 1
        flat = unroll(program, self._kinds, chunks=chunks, tiles=(1,) * chunks if long else ())
        self._send("span", (batch_of(name),))
        for owner in owners:
            self._renewals[owner] = self._renewals.get(owner - SEATS, 0) + 1
        at_yield = self._decode if running else None
        for launch in inline(name, program, flat, self._cards, at_yield):
            if launch.label == self._decode.label:
                self._send("span", (batch_of(name),))  # somebody has left: its rows are nobody's
                self._launch_decode(launch, running, ahead=False, renewing=())
                self.take()
            elif launch.stream != HOST:
                self.launches.append(self._of_span(launch, owners))
        self._seen |= {owner: self._renewals[owner] for owner in owners}
        self._bring(Value(f"{name}.tokens"), ())
        self.take()

    def _launch_decode(
        self, step: Launch, owners: Iterable[int], *, ahead: bool, renewing: Collection[int]
    ) -> None:
        owners, run = tuple(owners), self._runs
        token_ids, batch = Value(TOKEN_IDS, (run,)), Value("decode.batch", (run,))
        self._send("decode", (batch, UNKNOWN if ahead else token_ids))
        if ahead:
            self._main(f"feed({run})", reads=(_tokens(run - 1),), writes=(token_ids,))
        for owner in renewing:
            self._renewals[owner] = self._renewals.get(owner, 0) + 1
        reads = (value for value in step.reads if value != batch_of("decode"))
        writes = (value for value in step.writes if value != Value("decode.tokens"))
        self.launches.append(
            replace(
                step,
                label=f"decode({run})",
                reads=(batch, token_ids, *self._of_owners(reads, owners)),
                writes=(
                    _tokens(run),
                    *self._of_owners(writes, owners),
                    *self._shadows(step.writes, renewing),
                ),
                records=(),
            )
        )
        self._bring(_tokens(run), tuple(renewing))

    def _of_span(self, launch: Launch, owners: Collection[int]) -> Launch:
        """Of sequences that were just let in: their states, live and shadow, and pages hold nothing of them yet."""
        reads, writes = (self._of_owners(side, owners) for side in (launch.reads, launch.writes))
        new = {value for value in writes if value.name in self._owned} - self._begun
        self._begun |= new
        return replace(
            launch,
            reads=tuple(value for value in reads if value not in new),
            writes=(*writes, *self._shadows(launch.writes, owners)),
            records=tuple(event for event in launch.records if event != DRAWN),
            in_place=frozenset(
                (source, target)
                for pair in launch.in_place
                for source, target in zip(
                    *(self._of_owners((one,), owners) for one in pair), strict=True
                )
            ),
            continues=launch.continues and not new,
        )

    def _send(self, region: str, targets: tuple[Value, ...]) -> None:
        """The host writes a region once its last copy has been made, and a copy brings it over."""
        written, sent = Value(PINNED + region, (self._runs,)), Value(f"{SENT}.{region}")
        label = f"{region},{self._runs}"
        self._host(f"write({label})", writes=(written,), waits=(sent,))
        self._main(
            f"send({label})", reads=(written,), writes=targets, waits=(ENQUEUED,), records=(sent,)
        )

    def _bring(self, tokens: Value, renewed: tuple[int, ...]) -> None:
        run, self._runs = self._runs, self._runs + 1
        self._untaken.append((run, renewed))
        self._main(
            f"bring({run})",
            reads=(tokens,),
            writes=(Value(DRAWN_TOKENS, (run,)),),
            records=(_drawn(run),),
        )

    def _host(
        self,
        label: str,
        *,
        reads: tuple[Value, ...] = (),
        writes: tuple[Value, ...] = (),
        waits: tuple[Value, ...],
    ) -> None:
        self.launches.append(
            Launch(f"host.{label}", HOST, reads, writes, waits=waits, records=(ENQUEUED,))
        )

    def _main(
        self,
        label: str,
        *,
        reads: tuple[Value, ...],
        writes: tuple[Value, ...],
        waits: tuple[Value, ...] = (),
        records: tuple[Value, ...] = (),
    ) -> None:
        self.launches.append(Launch(label, "main", reads, writes, waits=waits, records=records))

    def _shadows(self, values: Iterable[Value], owners: Iterable[int]) -> tuple[Value, ...]:
        """Beside states that a launch writes, those that it keeps for later."""
        states = [value for value in values if value.name in self._states]
        return tuple(
            _shadow(value.name, value.index[0], owner, self._renewals.get(owner, 0))
            for value in states
            for owner in owners
        )

    def _of_owners(self, values: Iterable[Value], owners: Iterable[int]) -> tuple[Value, ...]:
        """Values of one owner as those of others."""
        found: dict[Value, None] = {}
        for value in values:
            if value.name in self._owned:
                found |= {Value(value.name, (value.index[0], owner)): None for owner in owners}
            else:
                found[value] = None
        return tuple(found)


def steps_ahead(
    programs: Programs, kinds: Sequence[str], cards: Cards, *, chunks: int
) -> tuple[Launch, ...]:
    """D a a (0 ends) P(D) D, D that renews, a (1 ends) E D a; `a` is launched ahead, what it follows is read then."""
    life = StepsAhead(programs, kinds, cards, chunks=chunks)
    life.decode(0, 1)
    life.decode(0, 1, ahead=True)
    life.take()
    life.decode(0, 1, ahead=True)
    life.take()
    life.park(0)
    life.take()
    life.span("prefill", (2,), (1,))
    life.decode(1, 2)
    life.take()
    life.decode(1, 2, renewing=(1, 2))
    life.decode(1, 2, ahead=True)
    life.take()
    life.park(1)
    life.take()
    life.span("extend", (3,))
    life.decode(2, 3)
    life.decode(2, 3, ahead=True)
    life.take()
    life.take()
    return tuple(life.launches)


def with_steps_ahead(layout: Layout, owned: Collection[str]) -> Layout:
    """A plan's layout, for numbered batches and tokens and for owners who got what others held.

    `owned`: names of values whose second index is their owner.
    """

    def place(value: Value) -> Place:
        if value.name == DRAWN_TOKENS:
            at = value.index[0] % UNDER_WAY
            return Place(value.name, at, at + 1)
        if value.name.startswith(SHADOW):
            layer, owner, _ = value.index
            return Place(f"{value.name}/{owner % SEATS}", layer, layer + 1)
        if _is_own(value):
            return Place(value.name, 0, 1)
        return layout.place(known(value))

    def known(value: Value) -> Value:
        """As the plan's layout knows it."""
        if value.name == "decode.tokens":
            return Value(value.name)
        if value.name in owned:
            return Value(value.name, (value.index[0], value.index[1] % SEATS))
        return value

    def persistent(value: Value) -> bool:
        if value.name.startswith(SHADOW):
            return value.index[-1] == 0
        return not _is_own(value) and layout.persistent(known(value))

    return replace(
        layout,
        place=place,
        persistent=persistent,
        view_of=lambda value: () if _is_own(value) else layout.view_of(known(value)),
        one_tile=lambda value: not _is_own(value) and layout.one_tile(known(value)),
    )


def _is_own(value: Value) -> bool:
    """Not of the plan's buffers."""
    return value.name.startswith((PINNED, SHADOW, TOKEN_IDS)) or (
        value.name == "decode.batch" and value.index != ()
    )


def _tokens(run: int) -> Value:
    return Value("decode.tokens", (run,))


def _shadow(name: str, layer: int, owner: int, renewals: int) -> Value:
    return Value(SHADOW + name, (layer, owner, renewals))


def _drawn(run: int) -> Value:
    """Tokens are in their place on the host."""
    return Value(DRAWN.name, (run % UNDER_WAY,))
