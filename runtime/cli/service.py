"""`ft run --service`: a systemd user unit that runs this command."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.fit import require_runnable
from firmtoken.runtime.cli.lock import lock_path, require_lock
from firmtoken.runtime.cli.report_text import printable
from firmtoken.runtime.cli.serve import DRAIN_S, LAST_WORDS_S, STOP_GRACE_S
from firmtoken.runtime.exit_codes import FAILED, INTERRUPTED, REFUSED, TERMINATED, WRONG
from firmtoken.schema.references import SHIPPED

MARGIN_S = 15
"""For the interpreter's own end, on a busy machine."""
RESTART_S = 5
UNITS = "~/.config/systemd/user"
PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./%-]+")
"""Words that need no quotes."""
CARRIED = (
    "CUDA_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
)
"""Variables that a service would not have: those that `ft run` reads (D17), and where huggingface_hub finds its hub.

`HF_TOKEN` is a secret, and units are not.
"""


def print_service(
    argument: str,
    overrides: Sequence[str],
    *,
    locked: bool,
    lock: str | None,
    yes: bool,
    debug: bool,
) -> int:
    """Check the profile as `ft run` would, print the unit, start nothing."""
    compiled = compile_argument(argument, overrides)
    require_runnable(compiled)
    path = lock_path(compiled, lock).absolute() if locked else None
    if path is not None:
        require_lock(compiled, path, argument)
    unit = service_unit(
        name=compiled.plan.profile.name,
        program=_program(Path(sys.executable)),
        profile=_profile(argument, compiled.loaded.name),
        overrides=overrides,
        lock=path,
        yes=yes,
        debug=debug,
        folder=Path.cwd(),
        environ=os.environ,
    )
    print(unit, end="")
    return 0


def service_unit(
    *,
    name: str,
    program: Sequence[str],
    profile: str,
    overrides: Sequence[str],
    lock: Path | None,
    yes: bool,
    debug: bool,
    folder: Path,
    environ: Mapping[str, str],
) -> str:
    """The text of the unit; `folder` is where relative paths in `overrides` start."""
    settings = [part for override in overrides for part in ("--set", override)]
    settings += ["--locked", "--lock", str(lock)] if lock is not None else []
    settings += ["--yes"] if yes else []
    settings += ["--debug"] if debug else []
    command = " ".join(
        (
            # systemd expands variables in arguments, not in the path of the program.
            _quoted(program[0], dollar="$"),
            *(_quoted(part, dollar="$$") for part in (*program[1:], "run", profile, *settings)),
        )
    )
    lines = [
        "# Install and start it:",
        f"#   mkdir -p {UNITS} && {_shown(profile, settings)} > {UNITS}/firmtoken.service",
        "#   systemctl --user daemon-reload && systemctl --user enable --now firmtoken",
        "# `loginctl enable-linger` starts it without a login; `journalctl --user -u firmtoken` is its log.",
        "[Unit]",
        f"Description=FirmToken serves {printable(name).replace('%', '%%')}",
        "",
        "[Service]",
        f"ExecStart={command}",
        # Relative paths of `--set` start there; nothing else does.
        *([f"WorkingDirectory={_path(folder)}"] if overrides else []),
        *(
            f"Environment={_quoted(f'{variable}={environ[variable]}', dollar='$')}"
            for variable in CARRIED
            if variable in environ
        ),
        "Restart=on-failure",
        f"RestartSec={RESTART_S}",
        "# A wrong profile, or one that does not fit, does not get better by itself.",
        f"RestartPreventExitStatus={WRONG} {REFUSED}",
        "# Told to stop while requests were running that did not end in time.",
        f"SuccessExitStatus={INTERRUPTED} {TERMINATED}",
        f"# Running requests have {DRAIN_S:.0f} s to end.",
        f"TimeoutStopSec={ceil(DRAIN_S + LAST_WORDS_S + STOP_GRACE_S + MARGIN_S)}",
        "# The signal to stop goes to the server alone, which lets its engine finish.",
        "KillMode=mixed",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def _program(executable: Path) -> tuple[str, ...]:
    """`ft` as it was installed for this interpreter; a tree without installation has the module alone."""
    script = executable.parent / "ft"
    if script.is_file():
        return (str(script),)
    return (str(executable), "-P", "-m", "firmtoken.runtime.cli.run")


def _profile(argument: str, name: str) -> str:
    return name if name.startswith(SHIPPED) else str(Path(argument).absolute())


def _shown(profile: str, settings: Sequence[str]) -> str:
    """The command that prints the unit, for a comment."""
    command = shlex.join(("ft", "run", profile, *settings, "--service"))
    return command if command.isprintable() else "ft run ... --service"


def _quoted(text: str, *, dollar: str) -> str:
    """One word as systemd reads it: quotes and C escapes, then specifiers (`%`), then variables."""
    escapes = {'"': '\\"', "\\": "\\\\", "%": "%%", "$": dollar}
    written = "".join(
        escapes.get(letter, letter) if letter.isprintable() else _bytes(letter) for letter in text
    )
    return written if PLAIN.fullmatch(written) else f'"{written}"'


def _bytes(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


def _path(folder: Path) -> str:
    """A path as a whole line, where systemd knows neither quotes nor escapes."""
    path = str(folder)
    if not path.isprintable() or path.endswith(("\\", " ")):
        raise Failure(
            f"a systemd unit cannot name the folder `{printable(path)}`",
            exit_code=FAILED,
            hint="run this in another folder",
        )
    return path.replace("%", "%%")
