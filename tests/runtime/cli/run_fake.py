"""The console script with a scripted engine: `run_fake.py SCRIPT ft-arguments...`."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from firmtoken.runtime.cli import launch, run
from firmtoken.runtime.cli import serve as serve_module
from firmtoken.runtime.cli.serve import Launch, serve

ENGINE = Path(__file__).parent.parent / "server" / "fake_engine.py"


def serve_fake(launched: Launch) -> int:
    engine = replace(
        launched.engine,
        plan_json=SCRIPT.encode(),
        command=(sys.executable, "-P", str(ENGINE)),
        most_restarts=MOST_RESTARTS,
    )
    return serve(replace(launched, engine=engine))


script = json.loads(sys.argv.pop(1))
serve_module.DRAIN_S = script.pop("drain_s", serve_module.DRAIN_S)
MOST_RESTARTS = script.pop("most_restarts", 0)
SCRIPT = json.dumps(script)
launch.serve = serve_fake
run.main()
