"""Which Triton functions get another form after an engine is ready, and why: none should. For a real GPU.

    PYTHONPATH=.src:tests/device python tests/device/late_forms.py [--profile NAME] [--set FIELD=VALUE ...]

A plain script: the engine alone, random weights. Prints JSON lines: forms and seconds of the start; then for prompts of
several lengths, alone and together, the time of the first token three times, and each form that was made meanwhile: its
function, pointers that are not aligned, constants. What a CPU can say of this is
`tests/runtime/engine/test_forms_after_ready.py`.
"""

import argparse
import gc
import time
from typing import Any  # Triton's hooks have no types

import torch
from prompts import Asking, say
from random_weights import fill_random
from triton import knobs

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.warm_up import warm_up
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

PROMPTS = ((1,), (37,), (1912,), (6008,), (3001,), (7, 500, 37, 1912), (5, 6), (2049,), (20_000,))
"""Tokens of prompts that are asked at once."""


class Forms:
    """What Triton made ready since the last look."""

    def __init__(self) -> None:
        self.made: list[dict[str, object]] = []
        self.loaded = 0
        knobs.runtime.jit_post_compile_hook = self._made
        knobs.runtime.kernel_load_end_hook.add(self._loaded)

    def take(self) -> tuple[list[dict[str, object]], int]:
        made, loaded = self.made, self.loaded
        self.made, self.loaded = [], 0
        return made, loaded

    def _made(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> None:  # noqa: A002  Triton's word
        [attributes] = compile["configs"]
        names = list(compile["signature"])
        pointers = [n for n, kind in compile["signature"].items() if str(kind).startswith("*")]
        aligned = {names[place[0]] for place, found in attributes.items() if found}
        self.made.append(
            {
                "function": fn.name,
                "not_aligned": [name for name in pointers if name not in aligned],
                "constants": {names[at[0]]: str(v) for at, v in compile["constants"].items()},
            }
        )

    def _loaded(self, *_: Any) -> None:
        self.loaded += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="tests/device/h200-synthetic.yaml")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    plan = compile_profile(load_profile(arguments.profile, arguments.set).profile, CARDS)
    interpreter = Interpreter(plan, Arena(plan.spaces, {}, "cuda"))
    fill_random(plan, interpreter.views)
    forms = Forms()
    begun = time.perf_counter()
    warm_up(plan, interpreter)
    gc.freeze()  # as the engine's process does
    made, loaded = forms.take()
    strange = [form for form in made if form["not_aligned"]]
    say(
        case="ready", s=round(time.perf_counter() - begun, 2), forms=len(made), loaded=loaded,
        not_aligned=strange,
    )  # fmt: skip
    asking = Asking(plan, interpreter)
    late = 0
    for lengths in PROMPTS:
        times = []
        for _ in range(3):
            ids = asking.ask(*(asking.fresh(length) for length in lengths), output=2)
            times.append(round(1e3 * max(asking.times[one][0] for one in ids), 2))
        made, loaded = forms.take()
        late += len(made) + loaded
        say(case="prompts", tokens=lengths, ms=times, loaded=loaded, made=made)
    say(case="end", late=late, held=torch.cuda.memory_allocated())
    assert late == 0, "the plan's forms are made and loaded before ready"
    assert not strange, "every address is a multiple of 16"


if __name__ == "__main__":
    main()
