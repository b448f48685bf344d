"""`place_streams`: copies go to the side stream, and events order exactly what depends on the other stream (D5).

An event is named after what the producer did (`prefill.fetched[l]`, of a wave `prefill.fetched[l,w]`). Only values that
cross streams make one; that a side stream never overwrites what is still read follows from those same events, and
`verify` proves it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from firmtoken.compiler.plan import Edge, Programs, Streams
from firmtoken.compiler.program import Body, Item, Loop, Program, Step, When
from firmtoken.compiler.steps import map_steps, steps_of
from firmtoken.compiler.unroll import parse_reference

SIDE_OPS = frozenset({"fetch", "snapshot"})
DONE = {"resolve": "resolved", "admit": "admitted", "fetch": "fetched"}
SNAPPED = "snapped"


def place_streams(programs: Programs, *, layout: str) -> tuple[Programs, Streams]:
    """Programs with streams and events; `layout` is `auto` or `single`."""
    steps = tuple(_all_steps(programs))
    side = [step.op for step in steps if step.op in SIDE_OPS]
    if layout == "single" or not side:
        why = "asked for" if layout == "single" else "nothing is copied beside compute"
        return programs, Streams(
            layout="single", names=("main",), edges=(), because=f"one stream: {why}"
        )
    snapped = (SNAPPED,) if programs.park is not None else ()
    placed = Programs(
        decode=replace(_place(programs.decode, "decode"), entry_waits=snapped),
        prefill=replace(_place(programs.prefill, "prefill"), entry_waits=snapped),
        extend=replace(_place(programs.extend, "extend"), entry_waits=snapped),
        park=None if programs.park is None else _place_park(programs.park),
    )
    what = "expert copies" if "fetch" in side else ""
    what += (" and " if what else "") + "state snapshots" if "snapshot" in side else ""
    return placed, Streams(
        layout="two",
        names=("main", "link"),
        edges=_edges(placed),
        because=f"{what} run on `link` beside compute on `main`",
    )


def _place(program: Program, name: str) -> Program:
    program = map_steps(program, _to_stream)
    writers = _writers(program)

    def order(step: Step) -> Step:
        records = _records(step, name, program)
        waits = tuple(
            event
            for reference in step.reads
            for producer, written in writers.get(parse_reference(reference)[0], ())
            if producer.stream != step.stream
            for event in _wait(producer, written, reference, name, program)
        )
        return replace(step, records=records, waits=tuple(dict.fromkeys(waits)))

    return _without_repeats(map_steps(program, order))


def _to_stream(step: Step) -> Step:
    return replace(step, stream="link") if step.op in SIDE_OPS else step


def _writers(program: Program) -> dict[str, list[tuple[Step, str]]]:
    writers: dict[str, list[tuple[Step, str]]] = {}
    for step in steps_of(program):
        for reference in step.writes:
            writers.setdefault(parse_reference(reference)[0], []).append((step, reference))
    return writers


def _crossing(producer: Step, program: Program) -> tuple[str, ...]:
    """References that this step writes and another stream reads."""
    if producer.op not in DONE:
        return ()
    read = {
        parse_reference(reference)[0]
        for reader in steps_of(program)
        if reader.stream != producer.stream
        for reference in reader.reads
    }
    return tuple(ref for ref in producer.writes if parse_reference(ref)[0] in read)


def _event(producer: Step, program: str, crossing: tuple[str, ...]) -> tuple[str, str]:
    """Name of the event and the index under which it is recorded (empty if no crossing value has one)."""
    indices = [parse_reference(reference)[1] for reference in crossing]
    index = next((parts for parts in indices if parts), ())
    return f"{program}.{DONE[producer.op]}", ",".join(index)


def _wait(
    producer: Step, written: str, reference: str, name: str, program: Program
) -> Iterator[str]:
    event, recorded_index = _event(producer, name, _crossing(producer, program))
    index = parse_reference(reference)[1]
    if not recorded_index:
        yield event
    elif parse_reference(written)[1] and index:
        yield f"{event}[{','.join(index)}]"


def _records(step: Step, name: str, program: Program) -> tuple[str, ...]:
    crossing = _crossing(step, program)
    if not crossing:
        return ()
    event, index = _event(step, name, crossing)
    return (f"{event}[{index}]" if index else event,)


def _without_repeats(program: Program) -> Program:
    """In a run of steps, and in loops inside it, the second wait of one stream for one event orders nothing new."""

    def trim(body: Body, before: Mapping[str, frozenset[str]]) -> Body:
        waited = dict(before)
        trimmed: list[Item] = []
        for item in body:
            if isinstance(item, Step):
                seen = waited.get(item.stream, frozenset())
                trimmed.append(
                    replace(item, waits=tuple(event for event in item.waits if event not in seen))
                )
                waited[item.stream] = seen.union(item.waits)
            elif isinstance(item, Loop):
                trimmed.append(replace(item, body=trim(item.body, waited)))
            elif isinstance(item, When):
                trimmed.append(replace(item, body=trim(item.body, {})))
            else:
                trimmed.append(item)
        return tuple(trimmed)

    return replace(
        program,
        body=trim(program.body, {}),
        blocks={name: trim(body, {}) for name, body in program.blocks.items()},
    )


def _place_park(program: Program) -> Program:
    """Snapshots start when everything enqueued before them is done, and `snapped` covers them all."""
    program = map_steps(program, _to_stream)
    mark = Step(op="mark", kernel="", stream="main", rows="1", operands={})
    entered = "park.entered"
    return replace(
        program,
        body=(
            replace(mark, records=(entered,)),
            replace(mark, stream="link", waits=(entered,)),
            *program.body,
            replace(mark, stream="link", records=(SNAPPED,)),
        ),
    )


def _edges(programs: Programs) -> tuple[Edge, ...]:
    streams: dict[str, tuple[set[str], set[str]]] = {}
    for step in _all_steps(programs):
        for event in step.records:
            streams.setdefault(_event_name(event), (set(), set()))[0].add(step.stream)
        for event in step.waits:
            streams.setdefault(_event_name(event), (set(), set()))[1].add(step.stream)
    if programs.park is not None:
        streams[SNAPPED][1].add("main")
    return tuple(
        Edge(frm=source, to=target, event=event)
        for event, (sources, targets) in sorted(streams.items())
        for source in sorted(sources)
        for target in sorted(targets)
    )


def _event_name(reference: str) -> str:
    return parse_reference(reference)[0]


def _all_steps(programs: Programs) -> Iterator[Step]:
    for _, program in programs.named():
        yield from steps_of(program)
