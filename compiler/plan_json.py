"""A plan to JSON and back: the same keys as the dataclasses, template items told apart by their keys."""

from collections.abc import Callable
from typing import Any, get_type_hints  # Any: JSON values have no narrower type

import msgspec

from firmtoken.compiler.plan import SCHEMA, Edge, Plan, Programs
from firmtoken.compiler.program import Block, BlockOf, Body, Item, Loop, Program, Step, When, Yield


class BadPlan(ValueError):
    """Bytes that are not a plan of this schema: what is wrong, in one sentence."""


def plan_to_data(plan: Plan) -> dict[str, Any]:  # JSON
    """Plain dicts and lists, ready for any encoder."""
    data: dict[str, Any] = msgspec.to_builtins(plan)
    programs = plan.programs
    data["programs"] = {
        "decode": _program_to_data(programs.decode),
        "prefill": _program_to_data(programs.prefill),
        "extend": _program_to_data(programs.extend),
        "park": None if programs.park is None else _program_to_data(programs.park),
    }
    data["streams"]["edges"] = [_edge_to_data(edge) for edge in plan.streams.edges]
    return data


def plan_to_json(plan: Plan, *, indent: bool = False) -> bytes:
    """UTF-8 JSON; keys in the order of the dataclasses, so equal plans give equal bytes."""
    encoded = msgspec.json.encode(plan_to_data(plan))
    return msgspec.json.format(encoded, indent=2) if indent else encoded


def plan_from_json(encoded: bytes) -> Plan:
    """The plan; raises `BadPlan` for anything that is not one, extra or missing keys included."""
    try:
        data = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadPlan(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BadPlan(f"not a plan of schema `{SCHEMA}`")
    try:
        return _plan_from_data(data)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadPlan(f"not a complete plan: {error}") from error


def _plan_from_data(data: dict[str, Any]) -> Plan:
    # Key by key, because msgspec takes no untagged union of dataclasses and template items are one.
    hints = get_type_hints(Plan)
    if unknown := data.keys() - hints.keys():
        raise BadPlan(f"unknown keys {sorted(unknown)}")
    data["streams"]["edges"] = [_edge_from_data(edge) for edge in data["streams"]["edges"]]
    parts: dict[str, Any] = {
        name: msgspec.convert(data[name], kind)
        for name, kind in hints.items()
        if name != "programs"
    }
    given = data["programs"]
    programs = Programs(
        decode=_program_from_data(given["decode"]),
        prefill=_program_from_data(given["prefill"]),
        extend=_program_from_data(given["extend"]),
        park=None if given["park"] is None else _program_from_data(given["park"]),
    )
    return Plan(**parts, programs=programs)


def _edge_to_data(edge: Edge) -> dict[str, str]:
    return {"from": edge.frm, "to": edge.to, "event": edge.event}


def _edge_from_data(data: dict[str, str]) -> dict[str, str]:
    return {"frm": data["from"], "to": data["to"], "event": data["event"]}


def _program_to_data(program: Program) -> dict[str, Any]:
    return {
        "captured": program.captured,
        "closed": program.closed,
        "sizes": list(program.sizes),
        "bounds": program.bounds,
        "entry_waits": list(program.entry_waits),
        "body": body_to_data(program.body),
        "blocks": {name: body_to_data(body) for name, body in program.blocks.items()},
    }


def body_to_data(body: Body) -> list[dict[str, Any]]:
    """Template items as their plain keys: `op`, `loop`, `block`, `block_of`, `when` or `yield`."""
    return [_item_to_data(item) for item in body]


def _item_to_data(item: Item) -> dict[str, Any]:
    if isinstance(item, Yield):
        return {"yield": item.program}
    if isinstance(item, Loop):
        return {"loop": item.loop, "count": item.count, "body": body_to_data(item.body)}
    if isinstance(item, When):
        return {"when": item.when, "body": body_to_data(item.body)}
    data: dict[str, Any] = msgspec.to_builtins(item)
    if isinstance(item, Step) and not item.indices:
        del data["indices"]
    return data


def _program_from_data(data: dict[str, Any]) -> Program:
    return Program(
        captured=msgspec.convert(data["captured"], bool),
        closed=msgspec.convert(data["closed"], bool),
        sizes=msgspec.convert(data["sizes"], tuple[int, ...]),
        bounds=msgspec.convert(data["bounds"], dict[str, int]),
        entry_waits=msgspec.convert(data["entry_waits"], tuple[str, ...]),
        body=_body_from_data(data["body"]),
        blocks={name: _body_from_data(body) for name, body in data["blocks"].items()},
    )


def _body_from_data(items: list[dict[str, Any]]) -> Body:
    return tuple(_item_from_data(item) for item in items)


_ITEMS: tuple[tuple[str, Callable[[dict[str, Any]], Item]], ...] = (
    ("op", lambda data: msgspec.convert(data, Step)),
    ("yield", lambda data: Yield(program=data["yield"])),
    (
        "loop",
        lambda data: Loop(
            loop=data["loop"], count=data["count"], body=_body_from_data(data["body"])
        ),
    ),
    ("when", lambda data: When(when=data["when"], body=_body_from_data(data["body"]))),
    ("block_of", lambda data: msgspec.convert(data, BlockOf)),
    ("block", lambda data: msgspec.convert(data, Block)),
)


def _item_from_data(data: dict[str, Any]) -> Item:
    for key, make in _ITEMS:
        if key in data:
            return make(data)
    raise BadPlan(f"a template item with keys {sorted(data)}")
