"""The console entry: every command, its arguments and its help.

Imports stand inside the functions, and only here (STYLE.md 7): `ft --help` and `ft plan` must not pay for the web
server, nor `ft schema` for the compiler.
"""

# ruff: noqa: E402  the first statement comes before the imports, because it is about them
import signal

# Ctrl-C while modules load would be a traceback from wherever the import stood.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import functools
import os
from typing import TYPE_CHECKING

import rich_click as click

from firmtoken import __version__
from firmtoken.runtime.cli.ending import answering, run_console
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.packages import SERVING, needed
from firmtoken.runtime.exit_codes import WRONG

if TYPE_CHECKING:
    from firmtoken.compiler.plan import Plan

click.rich_click.COMMAND_GROUPS = {
    "*": [
        {"name": "Serve", "commands": ["run"]},
        {"name": "When something goes wrong", "commands": ["why", "dump"]},
        {"name": "Before serving", "commands": ["plan", "check", "explain", "diff", "profile"]},
        {"name": "Other", "commands": ["bench", "synth", "schema", "version"]},
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


def _from_hub(plan: "Plan", *, yes: bool) -> "Plan":
    with needed("run", extra="hub"):
        from firmtoken.runtime.cli.hub import fetch_checkpoint

    return fetch_checkpoint(plan, yes=yes)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ft")
def ft() -> None:
    """Serves Mixture-of-Experts models bigger than the GPU's memory, from a profile compiled into a fixed plan.

    PROFILE is a YAML file, or the name of a shipped one: `tiny-cpu` runs anywhere, `4090-qwen` can be planned anywhere.
    """


@ft.command()
@_profile
@_set
@click.option("--host", help="Address to bind: short for `--set server.host=...`.")
@click.option("--port", help="Port to bind: short for `--set server.port=...`.")
@click.option(
    "--locked",
    is_flag=True,
    help="Refuse unless the plan is the one that `ft plan PROFILE --output NAME.lock.json` wrote beside the profile "
    "(of a shipped profile: in the working directory).",
)
@click.option("--lock", metavar="FILE", help="With --locked: the plan to compare with.")
@click.option("--service", is_flag=True, help="Print a systemd user unit for this, start nothing.")
@click.option("--yes", is_flag=True, help="Download a checkpoint from the hub without a question.")
@click.option("--debug", is_flag=True, help="Check the scheduler's invariants after each step.")
@answering
def run(
    profile: str,
    overrides: tuple[str, ...],
    host: str | None,
    port: str | None,
    locked: bool,
    lock: str | None,
    service: bool,
    yes: bool,
    debug: bool,
) -> int:
    """Compile PROFILE, load the model and serve it.

    Prints the plan's summary before anything is allocated, then progress, then `ready` with the address.
    """
    if lock is not None and not locked:
        raise Failure("`--lock` goes with `--locked`", exit_code=WRONG, hint="add `--locked`")
    with needed("run", extra="run", packages=SERVING):
        from firmtoken.runtime.cli.launch import launch
        from firmtoken.runtime.cli.service import print_service

    short = [("server.host", host), ("server.port", port)]
    given = [f"{field}={value}" for field, value in short if value is not None]
    settings = (*overrides, *given)
    if service:
        return print_service(profile, settings, locked=locked, lock=lock, yes=yes, debug=debug)
    from_hub = functools.partial(_from_hub, yes=yes)
    return launch(profile, settings, locked=locked, lock=lock, debug=debug, from_hub=from_hub)


_report_format = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)


@ft.command()
@_report_format
@answering
def why(form: str) -> int:
    """Say why the engine last stalled or died, in five lines."""
    from firmtoken.runtime.cli.why import why as tell_why

    return tell_why(form=form, environ=os.environ)


@ft.command()
@click.argument("url", default="http://127.0.0.1:1919")
@click.option("--key-file", metavar="FILE", help="File with the server's API key.")
@_report_format
@answering
def dump(url: str, key_file: str | None, form: str) -> int:
    """Show what the engine of the server at URL does right now; it goes on.

    URL is `http://127.0.0.1:1919` if not given.
    """
    from firmtoken.runtime.cli.dump import dump as show_dump

    return show_dump(url, key_file=key_file, form=form)


@ft.command()
@_profile
@_set
@click.option("--model", metavar="hub:ORG/NAME", help="Plan this checkpoint, not the profile's.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "yaml"]),
    help="[default: table; with --output json, or yaml for FILE.yaml]",
)
@click.option(
    "--output",
    metavar="FILE",
    help="Write to FILE instead of stdout: as JSON or YAML a lock for `ft run --locked`.",
)
@click.option("--unroll", metavar="PROGRAM", help="Print a program step by step: decode, ...")
@click.option(
    "--timeline",
    metavar="FILE.svg",
    help="Say where the time of a decode step and of a prompt goes, and draw it into FILE; `-` draws nothing.",
)
@answering
def plan(
    profile: str,
    overrides: tuple[str, ...],
    model: str | None,
    form: str | None,
    output: str | None,
    unroll: str | None,
    timeline: str | None,
) -> int:
    """Compile PROFILE and show the plan; needs no GPU.

    With `--model` the headers of a checkpoint on the hub are compared with it: no weights are downloaded.
    """
    inspect = None
    if model is not None:
        with needed("plan --model", extra="hub"):
            from firmtoken.runtime.cli.hub_model import hub_model

        found = hub_model(model)
        overrides, inspect = (found.override, *overrides), found.inspect
    if timeline is not None:
        if form or output or unroll:
            raise Failure(
                "`--timeline` goes with neither `--format`, `--output` nor `--unroll`",
                exit_code=WRONG,
                hint="run `ft plan` once for each",
            )
        from firmtoken.runtime.cli.timeline import show_timeline

        return show_timeline(profile, overrides, timeline, inspect)
    from firmtoken.runtime.cli.plan import show_plan

    return show_plan(profile, overrides, form=form, output=output, program=unroll, inspect=inspect)


@ft.command()
@click.argument("profiles", nargs=-1, required=True)
@_set
@click.option(
    "--kernels",
    is_flag=True,
    help="Also compile the kernels of each plan for its capability: registers, spills, shared memory. No GPU.",
)
@click.option(
    "--record",
    is_flag=True,
    help="With --kernels: write what was compiled to `profiles/evidence`; plans then say `compiled`.",
)
@answering
def check(
    profiles: tuple[str, ...], overrides: tuple[str, ...], kernels: bool, record: bool
) -> int:
    """Validate, compile and verify each of PROFILES; needs no GPU."""
    if record and not kernels:
        raise Failure("`--record` goes with `--kernels`", exit_code=WRONG, hint="add `--kernels`")
    from firmtoken.runtime.cli.check import check_profiles

    return check_profiles(profiles, overrides, kernels=kernels, record=record, environ=os.environ)


@ft.command()
@_profile
@click.argument("path", required=False)
@_set
@answering
def explain(profile: str, path: str | None, overrides: tuple[str, ...]) -> int:
    """Say why: for one PATH of the plan (`context`, `kernels.attention.decode`), or for all."""
    from firmtoken.runtime.cli.explain import explain_plan

    return explain_plan(profile, path, overrides)


@ft.command()
@click.argument("first")
@click.argument("second")
@_set
@answering
def diff(first: str, second: str, overrides: tuple[str, ...]) -> int:
    """Compare the plans of two profiles; `--set` applies to both."""
    from firmtoken.runtime.cli.diff import diff_plans

    return diff_plans(first, second, overrides)


@ft.command()
@click.argument("part", type=click.Choice(["profile", "hardware", "model"]), default="profile")
@answering
def schema(part: str) -> int:
    """Print the JSON Schema of a profile, for editors; or of a hardware or model file."""
    from firmtoken.runtime.cli.schema import print_schema

    return print_schema(part)


@ft.group()
def profile() -> None:
    """Make a part of a profile from what is there."""


@profile.command()
@click.argument("folder", metavar="DIR")
@click.option("--output", metavar="FILE", help="Write to FILE instead of stdout.")
@answering
def model(folder: str, output: str | None) -> int:
    """Make a model file from the checkpoint in DIR: its `config.json` and `hf_quant_config.json` are enough.

    DIR may be `hub:ORG/NAME`, or `hub:ORG/NAME@REVISION`.
    """
    if folder.startswith("hub:"):
        with needed("profile model", extra="hub"):
            from firmtoken.runtime.cli.hub_model import make_hub_model_profile

        return make_hub_model_profile(folder, output=output)
    from firmtoken.runtime.cli.profile import make_model_profile

    return make_model_profile(folder, output=output)


@ft.command()
@_profile
@_set
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each row; the median counts.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
@click.option("--top-p", type=click.FloatRange(0, 1), default=1.0, show_default=True)
@_report_format
@answering
def bench(
    profile: str,
    overrides: tuple[str, ...],
    runs: int,
    temperature: float,
    top_p: float,
    form: str,
) -> int:
    """Measure PROFILE on this machine: the engine alone, then through HTTP; at temperature 0 all draws are greedy."""
    with needed("bench", extra="run", packages=SERVING):
        from firmtoken.runtime.cli.bench import Wish
        from firmtoken.runtime.cli.bench import bench as measure

    wish = Wish(runs=runs, temperature=temperature, top_p=top_p, form=form)
    return measure(profile, overrides, wish, from_hub=functools.partial(_from_hub, yes=False))


@ft.command()
@_profile
@click.argument("directory", metavar="DIR")
@_set
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Equal seeds give equal weights. [default: that of the profile's `model.source`, or 0]",
)
@answering
def synth(profile: str, directory: str, overrides: tuple[str, ...], seed: int | None) -> int:
    """Write a synthetic checkpoint of PROFILE's model to DIR: random weights in the layout of the published one.

    `model.source: {synthetic: {seed: 0}}` in a profile serves the same weights without files.
    """
    with needed("synth", extra="run", packages=SERVING):
        from firmtoken.runtime.cli.synth import synthesise

    return synthesise(profile, directory, overrides, seed=seed)


@ft.command()
@answering
def version() -> int:
    """Print the version."""
    print(__version__)
    return 0


def main() -> None:
    """The console script; never a traceback for what a user did."""
    run_console(functools.partial(ft, prog_name="ft"))


if __name__ == "__main__":
    main()
