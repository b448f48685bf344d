"""The console script with an engine that meets faults: `run_with_faults.py FAULTS ft-arguments...`, FAULTS as JSON."""

import sys
from dataclasses import replace

import msgspec

from firmtoken.compiler.faults import Fault
from firmtoken.compiler.plan_json import plan_from_json, plan_to_json
from firmtoken.runtime.cli import launch, run
from firmtoken.runtime.cli.serve import Launch, serve

FAULTS = msgspec.json.decode(sys.argv.pop(1), type=tuple[Fault, ...])


def serve_with_faults(launched: Launch) -> int:
    plan = replace(plan_from_json(launched.plan_json), faults=FAULTS)
    engine = replace(launched.engine, plan_json=plan_to_json(plan), test_faults=True, debug=True)
    return serve(replace(launched, engine=engine))


launch.serve = serve_with_faults
run.main()
