"""`ft run`: compile, show what will be, compare with this machine, then serve."""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from firmtoken.compiler.explain import summary
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.cli.fit import require_fit, require_runnable
from firmtoken.runtime.cli.known_text import known_text
from firmtoken.runtime.cli.lock import lock_path, require_lock
from firmtoken.runtime.cli.log_file import LogFile, open_log_file, opening_lines
from firmtoken.runtime.cli.model_texts import model_texts
from firmtoken.runtime.cli.serve import Launch, serve
from firmtoken.runtime.cli.this_gpu import engine_environment
from firmtoken.runtime.cli.this_machine import compute_threads
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.key_file import KeysFault
from firmtoken.runtime.server.keys import load_keys
from firmtoken.runtime.server.life import EngineSpec
from firmtoken.runtime.server.listen import Listener, PortBusy, listen
from firmtoken.runtime.server.report import reports_folder
from firmtoken.runtime.server.served_model import ServedModel, load_served_model
from firmtoken.runtime.server.serving import serving_plan
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.planned_model import is_synthetic
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.schema.profile import Server

FromHub = Callable[[Plan], Plan]
"""A plan whose checkpoint is on the hub -> the same with it in a folder; raises `Failure`."""


def launch(
    argument: str,
    overrides: Sequence[str],
    *,
    locked: bool,
    lock: str | None,
    debug: bool,
    from_hub: FromHub,
) -> int:
    """Serve until told to stop; the exit code of D10."""
    # `kill -USR1` asks for stacks; C code answers, so it works while nothing else does.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    compiled = compile_argument(argument, overrides)
    require_runnable(compiled)
    _show(compiled.plan)
    if locked:
        require_lock(compiled, lock_path(compiled, lock), argument)
    require_fit(compiled)
    settings = compiled.loaded.profile.server
    keys = _keys(settings)
    if "hub" in compiled.plan.model.source:
        compiled = replace(compiled, plan=from_hub(compiled.plan))
    model = _model(compiled.plan)
    listener = _listen(settings)
    log_file = _log_file(compiled, listener)
    described = _described(compiled, model, listener, keys, log_file)
    return serve(replace(described, engine=replace(described.engine, debug=debug)))


def _show(plan: Plan) -> None:
    """The effective context first, so that nobody waits for a load to learn it."""
    print(summary(plan).rstrip("\n"), flush=True)


def _keys(settings: Server) -> tuple[bytes, ...]:
    if settings.api_keys is None:
        return ()
    try:
        return load_keys(Path(settings.api_keys.file))
    except KeysFault as error:
        raise Failure(
            f"`server.api_keys.file`: {error}", exit_code=WRONG, hint="one key per line"
        ) from error


def _model(plan: Plan) -> ServedModel:
    numbers = serving_plan(plan)
    try:
        with model_texts(plan) as folder:
            model = load_served_model(
                folder, dialect=numbers.dialect, vocab_size=numbers.vocab_size, now=datetime.now
            )
            if not is_synthetic(plan):
                # The engine does it again: here a broken checkpoint is said at once.
                preflight(plan, folder)
    except (ModelFolderFault, LoadError) as error:
        raise Failure(str(error), exit_code=FAILED, hint=error.hint) from error
    return model


def _listen(settings: Server) -> Listener:
    try:
        return listen(settings.host, settings.port)
    except PortBusy as error:
        raise Failure(str(error), exit_code=FAILED, hint=error.hint) from error


def _log_file(compiled: Compiled, listener: Listener) -> LogFile | None:
    file = open_log_file(
        compiled.loaded.profile.server.log_file,
        name=compiled.plan.profile.name,
        port=listener.port,
        environ=os.environ,
        opening=opening_lines(compiled.plan, argv=sys.argv, pid=os.getpid(), environ=os.environ),
    )
    if file is not None:
        print(f"log file {file.path}", flush=True)
    return file


def _described(
    compiled: Compiled,
    model: ServedModel,
    listener: Listener,
    keys: tuple[bytes, ...],
    log_file: LogFile | None,
) -> Launch:
    plan, plan_json = serving_plan(compiled.plan), plan_to_json(compiled.plan)
    threads = compiled.loaded.profile.hardware.host.threads
    return Launch(
        plan=plan,
        plan_json=plan_json,
        model=model,
        listener=listener,
        key_hashes=keys,
        log_file=log_file,
        engine=EngineSpec(
            plan_json=plan_json,
            segments=plan.segments,
            environment={
                **os.environ,
                **plan.environment,
                **engine_environment(compiled.plan, os.environ),
            },
            threads=threads if isinstance(threads, int) else compute_threads(),
            start_s=compiled.plan.schedule.deadlines.start_s,
            answer_s=compiled.plan.schedule.deadlines.decode_s,
            reports=_reports(),
            known_text=known_text(
                compiled.loaded.profile.model.perplexity, model.tokenizer, os.environ
            ),
        ),
    )


def _reports() -> Path | None:
    try:
        return reports_folder(os.environ)
    except RuntimeError as error:
        say(f"no reports will be written when the engine ends: {error}", "set XDG_STATE_HOME")
        return None
