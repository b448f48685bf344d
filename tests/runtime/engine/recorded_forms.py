"""Which forms of Triton functions an engine asks for, on a machine without a GPU: launches are recorded, none is made.

The plan is one for a GPU, engine and launchers are the real ones. Memory is mapped and stays zero, so that a plan of
hundreds of GB costs nothing. A form is what Triton keeps a compiled function by: types of arguments, what it has found
worth compiling for (an address that is a multiple of 16, an integer that is 1), constants and options.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any  # what Triton's functions take

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime import jit

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.engine import launches, program, warm_up
from firmtoken.runtime.engine.compile_ahead import CompileAhead
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.messages import GREEDY, Add
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.streams import Streams
from firmtoken.runtime.kernels import CARDS, Kernel, load_entry
from firmtoken.runtime.memory import arena
from firmtoken.schema.load import load_profile

TARGET = GPUTarget("cuda", 90, 32)
NO_RESERVE = 0x4000
"""`MAP_NORESERVE` of Linux: pages that nobody touches are promised to nobody."""
NOT_TRITON = (":snapshot", "cublas_bf16:linear")
ALIGNED = "D"
"""Triton's word for an argument that is known to be a multiple of 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One compiled form of a Triton function."""

    function: str
    arguments: tuple[tuple[str, str, str], ...]
    """Name, type, and what is known of it: `D`, or nothing."""
    constants: frozenset[tuple[str, str]]
    num_warps: int
    options: str
    """All of them, `num_warps` too."""

    @property
    def looked_at(self) -> list[str]:
        """Arguments whose value at this launch decided what is compiled: addresses as all addresses are do not."""
        return [
            f"{self.function}: {name}"
            for name, kind, known in self.arguments
            if known != (ALIGNED if kind.startswith("*") else "")
        ]


def function_name(function: Any) -> str:
    """`combine.rows.combine_row`"""
    return f"{function.__module__.rpartition('.kernels.')[2]}.{function.__name__}"


def constant(value: object) -> str:
    """As text; a plan has 0 and 1 where a function asks whether."""
    return str(int(value) if isinstance(value, bool) else value)


class Recorder:
    """Stands where Triton's functions run."""

    def __init__(self) -> None:
        self.forms: dict[Form, None] = {}
        self._binders: dict[Any, Callable[..., Any]] = {}
        self._backend = make_backend(TARGET)

    def run(self, function: Any, *args: Any, grid: object, warmup: bool, **options: Any) -> Any:
        """In place of `JITFunction.run`, which returns a kernel."""
        if function not in self._binders:
            self._binders[function] = jit.create_function_from_signature(
                function.signature, function.params, self._backend
            )
        bound, found, rest = self._binders[function](*args, **options)
        named = list(zip(function.params, found, strict=True))
        self.forms[
            Form(
                function=function_name(function),
                arguments=tuple(
                    (one.name, kind, known or "")
                    for one, (kind, known) in named
                    if not one.is_constexpr
                ),
                constants=frozenset(
                    (one.name, constant(bound[one.name])) for one, _ in named if one.is_constexpr
                ),
                num_warps=rest["num_warps"],
                options=str(sorted(rest.items())),
            )
        ] = None
        return SimpleNamespace(run=None)


class Recording:
    """An engine of a profile; what launches ask for is in `forms`, in order."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, profile: str, overrides: tuple[str, ...] = ()
    ) -> None:
        self._recorder = recorder = Recorder()
        monkeypatch.setattr(
            jit.JITFunction, "run", lambda self, *a, **more: recorder.run(self, *a, **more)
        )
        monkeypatch.setattr(arena, "_private_bytes", _mapped)
        monkeypatch.setattr(arena, "pin", lambda *_: None)
        monkeypatch.setattr(launches, "load_entry", _load_triton)
        monkeypatch.setattr(program, "open_streams", _open_streams)
        monkeypatch.setattr(warm_up, "captures", lambda _: False)
        self.plan = compile_profile(load_profile(profile, overrides).profile, CARDS)
        self._interpreter = Interpreter(self.plan, arena.Arena(self.plan.spaces, {}))
        self._asked = 0

    @property
    def forms(self) -> list[Form]:
        """So far."""
        return list(self._recorder.forms)

    def compile_ahead(self) -> None:
        """As a start does while weights are read."""
        with CompileAhead(self.plan, self._interpreter, threads=1) as kernels:
            kernels.finish(lambda *_: None)

    def warm_up(self) -> None:
        """As a start does, without graphs: what they hold was launched before."""
        warm_up.warm_up(self.plan, self._interpreter)

    def serve(self, *prompts: int) -> None:
        """Prompts of so many tokens at once, two tokens each."""
        engine = Engine(self.plan, self._interpreter, lambda _: None, lambda: None)
        for length in prompts:
            self._asked += 1
            engine.handle(
                Add(
                    request_id=self._asked,
                    token_ids=[self._asked] + [0] * (length - 1),
                    max_output=2,
                    sampling=GREEDY,
                    stop_token_ids=[],
                )
            )
        while not engine.idle:
            engine.step()


def _mapped(size: int, _: str = "cpu") -> torch.Tensor:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, max(size, 1), flags=flags), dtype=torch.uint8)[:size]


def _load_triton(entry: str) -> Kernel:
    return (lambda *_, **__: None) if entry.endswith(NOT_TRITON) else load_entry(entry)


def _open_streams(plan: Any, position: Any, *_: object, **__: object) -> tuple[Streams, None]:
    return Streams(plan.streams.names, position), None
