"""`explain`: why a part of the plan is what it is, found by its path (D13)."""

from collections.abc import Mapping
from typing import Any  # Any: JSON values have no narrower type

from firmtoken.compiler.layer_reasons import UnknownPath, explain_layer, is_layer_path
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_data
from firmtoken.compiler.tables import cut, paragraph
from firmtoken.schema.diagnostic import did_you_mean, listing

__all__ = ["UnknownPath", "explain"]

KEYS = ("op", "name", "phase", "format", "kernel", "id", "code", "context", "event", "set")
"""What a list item may be called by, in this order."""
REASON_KEYS = ("because", "message", "hint", "gain", "evidence", "status")
OVERVIEW = (
    "context",
    "experts",
    "kv_cache",
    "memory.device",
    "memory.host",
    "streams",
    "schedule",
    "estimates",
    "frontier",
    "warnings",
    "advice",
)

Data = Any  # a JSON value


def explain(plan: Plan, path: str = "") -> str:
    """Reasons, values and alternatives of one path, or an overview; raises `UnknownPath`."""
    if is_layer_path(path):
        return "\n".join(explain_layer(plan, path)) + "\n"
    data = plan_to_data(plan)
    if path:
        return "\n".join(_explained(path, _find(data, path))) + "\n"
    parts = [_explained(name, _find(data, name)) for name in OVERVIEW]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _find(data: Data, path: str) -> Data:
    found, walked = data, ""
    rest = path.split(".")
    while rest:
        # Names may hold dots (`experts.cache`), so the longest run of steps that is a name goes first.
        for length in range(len(rest), 0, -1):
            step = ".".join(rest[:length])
            matches = _matches(found, step)
            if matches:
                found = matches[0] if len(matches) == 1 else matches
                walked, rest = f"{walked}.{step}".lstrip("."), rest[length:]
                break
        else:
            raise _unknown(found, walked, rest[0])
    return found


def _matches(found: Data, step: str) -> list[Data]:
    if isinstance(found, Mapping):
        return [found[step]] if step in found else []
    if isinstance(found, list | tuple):
        for key in KEYS:
            named = [
                item for item in found if isinstance(item, Mapping) and str(item.get(key)) == step
            ]
            if named:
                return named
        if step.isdigit() and int(step) < len(found):
            return [found[int(step)]]
    return []


def _unknown(found: Data, walked: str, step: str) -> UnknownPath:
    names = _names(found)
    where = f"`{walked}`" if walked else "the plan"
    hint = did_you_mean(step, names)
    known = f"it has {listing(names)}" if names else _unnamed(found)
    return UnknownPath(f"{where} has no `{step}`", hint or known)


def _unnamed(found: Data) -> str:
    """The parts of what has no names."""
    if isinstance(found, list | tuple) and found:
        return f"it has `0` to `{len(found) - 1}`" if len(found) > 1 else "it has `0`"
    return "it has no parts"


def _names(found: Data) -> list[str]:
    if isinstance(found, Mapping):
        return list(found)
    if not isinstance(found, list | tuple):
        return []
    named = [
        str(item[key]) for item in found if isinstance(item, Mapping) for key in KEYS if key in item
    ]
    return list(dict.fromkeys(named))


def _explained(path: str, found: Data) -> list[str]:
    if isinstance(found, Mapping):
        return _explain_part(path, found)
    if isinstance(found, list | tuple):
        lines = [f"{path}: {len(found)}"]
        for item in found:
            lines += _explain_item(item)
        return lines
    return [cut(f"{path} = {_shown(found)}")]


def _explain_part(path: str, part: Mapping[str, Data]) -> list[str]:
    lines = [path]
    for key in REASON_KEYS:
        if part.get(key):
            lines += paragraph(f"{key}: {part[key]}", indent="    ", first="  ")
    for key, value in part.items():
        if key in REASON_KEYS or key == "rejected":
            continue
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            lines.append(f"  {key}:")
            for item in value:
                lines += _explain_item(item, indent="    ")
        elif isinstance(value, Mapping) and "lines" in value:
            lines += _explain_part(f"{path}.{key}", value)
        else:
            lines.append(cut(f"  {key} = {_shown(value)}"))
    for rejected in part.get("rejected", ()):
        lines += paragraph(
            f"not {rejected['kernel']}: {rejected['because']}", indent="    ", first="  "
        )
    return lines


def _explain_item(item: Data, indent: str = "  ") -> list[str]:
    if not isinstance(item, Mapping):
        return [cut(f"{indent}{_shown(item)}")]
    name = " ".join(str(item[key]) for key in KEYS if item.get(key) not in (None, ""))
    numbers = [f"{item['bytes']:,} B"] if isinstance(item.get("bytes"), int) else []
    reasons = [str(item[key]) for key in ("because", "message", "gain") if item.get(key)]
    lines = paragraph(
        "; ".join((name or _shown(item), *numbers, *reasons)), indent=indent + "  ", first=indent
    )
    for rejected in item.get("rejected", ()):
        lines += paragraph(
            f"not {rejected['kernel']}: {rejected['because']}",
            indent=indent + "    ",
            first=indent + "  ",
        )
    return lines


def _shown(value: Data) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(part) for part in value)
    return str(value)
