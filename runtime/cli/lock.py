"""`ft run --locked`: the plan is the one that was written with `ft plan --output`, or nothing starts."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: JSON values have no narrower type

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_from_json, plan_to_data
from firmtoken.runtime.cli.compiled import Compiled
from firmtoken.runtime.cli.diff import differences
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.output import YAML_SUFFIXES
from firmtoken.runtime.exit_codes import REFUSED, WRONG
from firmtoken.schema.references import SHIPPED
from firmtoken.schema.regular_file import read_regular

SUFFIX = ".lock.json"


def lock_path(compiled: Compiled, lock: str | None) -> Path:
    """The file that was named, else `NAME.lock.json` beside the profile; of a shipped profile, where one works."""
    if lock is not None:
        return Path(lock)
    name = compiled.loaded.name
    if name.startswith(SHIPPED):
        return Path(name.removeprefix(SHIPPED).replace("/", "-") + SUFFIX)
    return compiled.loaded.path.with_suffix(SUFFIX)


def require_lock(compiled: Compiled, path: Path, argument: str) -> None:
    """Raise `Failure` unless the file holds this very plan; labels of evidence may differ."""
    locked = _read(path, argument)
    if lines := list(_stale(locked, compiled.plan)):
        raise Failure(
            "\n".join((f"`{path}` locks another plan than this profile gives now:", *lines)),
            exit_code=REFUSED,
            hint=f"go back to what was locked, or lock what is now: {_again(argument, path)}",
        )


def _read(path: Path, argument: str) -> Plan:
    try:
        return plan_from_json(_json(path))
    except OSError as error:
        raise Failure(
            f"cannot read the lock `{path}`: {error.strerror}",
            exit_code=WRONG,
            hint=f"`--lock FILE` names another one; this makes it: {_again(argument, path)}",
        ) from error
    # Of YAML: keys, dates and numbers that JSON has not, and lists deeper than its reader goes.
    except (YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Failure(
            f"the lock `{path}` is no plan of this version: {str(error).splitlines()[0]}",
            exit_code=REFUSED,
            hint=f"lock what is now: {_again(argument, path)}",
        ) from error


def _json(path: Path) -> bytes:
    text = read_regular(path)
    if path.suffix in YAML_SUFFIXES:
        return msgspec.json.encode(YAML(typ="safe", pure=True).load(text))
    return text


def _again(argument: str, path: Path) -> str:
    command = shlex.join(("ft", "plan", argument, "--output", str(path)))
    return f"`{command}`, with the same `--set` as `ft run`"


def _stale(locked: Plan, now: Plan) -> Iterator[str]:
    """A line for each part of the fingerprint that changed, then for each choice, then the rest by its name."""
    yield from _inputs(locked, now)
    choices = list(differences(locked, now))
    yield from choices
    before, after = _data(locked), _data(now)
    rest = [key for key in after if before[key] != after[key]]
    if rest and not choices:
        yield f"~ no choice that `ft diff` shows, but {', '.join(rest)}"


def _inputs(locked: Plan, now: Plan) -> Iterator[str]:
    if locked.profile.fingerprint != now.profile.fingerprint:
        names = locked.profile.name, now.profile.name
        renamed = f", of `{names[0]}` instead of `{names[1]}`" if names[0] != names[1] else ""
        yield f"~ the profile asks for something else{renamed}"
    if locked.inputs.cards != now.inputs.cards:
        yield "~ the kernel cards are those of another version"
    if locked.inputs.hazards != now.inputs.hazards:
        yield "~ the hazards are those of another version"


def _data(plan: Plan) -> dict[str, Any]:  # JSON
    """What a lock holds fast."""
    data = plan_to_data(plan)
    del data["fingerprint"], data["inputs"], data["profile"], data["model"]["source"]
    for row in data["kernels"]:
        del row["evidence"]
    return data
