"""The console entry: every command, its arguments and its help.

Imports stand inside the functions, and only here (STYLE.md 7): `ft --help` and `ft plan` must not pay for the web
server, nor `ft schema` for the compiler.
"""

import sys
from collections.abc import Callable
from typing import Any  # Any: click's decorators take and give any callable

import rich_click as click

from firmtoken.runtime.cli.failure import INTERRUPTED, Failure, tell

click.rich_click.COMMAND_GROUPS = {
    "*": [
        {"name": "Serve", "commands": ["run"]},
        {"name": "Before serving", "commands": ["plan", "check", "explain", "diff"]},
        {"name": "Other", "commands": ["bench", "schema", "version"]},
    ]
}

_set = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override one value of the profile, e.g. `serving.context=128k`; may be repeated.",
)
_profile = click.argument("profile")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def ft() -> None:
    """Serves Mixture-of-Experts models bigger than the GPU's memory, from a profile compiled into a fixed plan."""


@ft.command()
@_profile
@_set
@click.option("--host", help="Address to bind: short for `--set server.host=...`.")
@click.option("--port", help="Port to bind: short for `--set server.port=...`.")
def run(profile: str, overrides: tuple[str, ...], host: str | None, port: str | None) -> None:
    """Compile PROFILE, load the model and serve it.

    Prints the plan's summary before anything is allocated, then progress, then `ready` with the address.
    """
    from firmtoken.runtime.cli.launch import launch

    short = [("server.host", host), ("server.port", port)]
    given = [f"{field}={value}" for field, value in short if value is not None]
    _finish(lambda: launch(profile, (*overrides, *given)))


@ft.command()
@_profile
@_set
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "yaml"]),
    help="[default: table; json with --output]",
)
@click.option("--output", metavar="FILE", help="Write to FILE instead of stdout.")
@click.option("--unroll", metavar="PROGRAM", help="Print a program step by step: decode, ...")
def plan(
    profile: str,
    overrides: tuple[str, ...],
    form: str | None,
    output: str | None,
    unroll: str | None,
) -> None:
    """Compile PROFILE and show the plan; needs no GPU."""
    from firmtoken.runtime.cli.plan import show_plan

    _finish(lambda: show_plan(profile, overrides, form=form, output=output, program=unroll))


@ft.command()
@click.argument("profiles", nargs=-1, required=True)
@_set
def check(profiles: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Validate, compile and verify each of PROFILES; needs no GPU."""
    from firmtoken.runtime.cli.check import check_profiles

    _finish(lambda: check_profiles(profiles, overrides))


@ft.command()
@_profile
@click.argument("path", required=False)
@_set
def explain(profile: str, path: str | None, overrides: tuple[str, ...]) -> None:
    """Say why: for one PATH of the plan (`context`, `kernels.attention.decode`), or for all."""
    from firmtoken.runtime.cli.explain import explain_plan

    _finish(lambda: explain_plan(profile, path, overrides))


@ft.command()
@click.argument("first")
@click.argument("second")
@_set
def diff(first: str, second: str, overrides: tuple[str, ...]) -> None:
    """Compare the plans of two profiles; `--set` applies to both."""
    from firmtoken.runtime.cli.diff import diff_plans

    _finish(lambda: diff_plans(first, second, overrides))


@ft.command()
@click.argument("part", type=click.Choice(["profile", "hardware", "model"]), default="profile")
def schema(part: str) -> None:
    """Print the JSON Schema of a profile, for editors; or of a hardware or model file."""
    from firmtoken.runtime.cli.schema import print_schema

    _finish(lambda: print_schema(part))


@ft.command()
@_profile
@_set
@click.option("--runs", default=3, show_default=True, help="Runs of each row; the median counts.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
def bench(profile: str, overrides: tuple[str, ...], runs: int, form: str) -> None:
    """Measure PROFILE on this machine: the engine alone, then through HTTP."""
    from firmtoken.runtime.cli.bench import bench as measure

    _finish(lambda: measure(profile, overrides, runs=runs, form=form))


@ft.command()
def version() -> None:
    """Print the version."""
    from firmtoken import __version__

    print(__version__)


def main() -> None:
    """The console script; never a traceback for what a user did."""
    try:
        ft(prog_name="ft")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _finish(command: Callable[[], int]) -> Any:  # Any: it does not return
    """Leave with the command's exit code, told failures with theirs."""
    try:
        code = command()
    except Failure as failure:
        tell(failure)
        code = failure.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
