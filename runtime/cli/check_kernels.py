"""`ft check --kernels`: a plan's kernels, compiled for its capability, and what they take beside what the card has."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from shutil import which

import msgspec

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.launch_forms import launch_forms, most_rows
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.tables import columns, paragraph
from firmtoken.runtime.cli.evidence import (
    BuildRecord,
    KernelRecord,
    evidence_folder,
    source_hash,
    write_records,
)
from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.cli.progress import CountProgress
from firmtoken.runtime.exit_codes import REFUSED
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.attention.flashinfer_module import FlashinferBuilt, FlashinferModule
from firmtoken.runtime.kernels.cross_compile import (
    Built,
    NotCompiled,
    Request,
    Result,
    compile_kernel,
    run_worker,
    unfit,
)

FLASHINFER = "flashinfer"
LIMIT_S = 180.0
"""For all builds of one kernel: here they take 3 to 8 s, on two busy cores."""
FLASHINFER_LIMIT_S = 1800.0
"""For one module: seven files of a minute or more each, here with one processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A kernel of the plan, compiled."""

    row: KernelChoice
    request: Request
    result: Result


def check_builds(plan: Plan, *, record: bool, environ: Mapping[str, str]) -> None:
    """Print what each takes, on stderr which one is compiled; raises `Failure` for the first that does not fit."""
    gpu = plan.hardware["gpu"]
    if not isinstance(gpu, Mapping):
        print("  kernels: nothing to compile, the CPU device runs none that are built for a card")
        return
    capability = str(gpu["compute_capability"])
    requests = kernel_requests(plan)
    if requests:
        _require_triton()
    compiled = _compile_all(requests, environ)
    for line in _table(compiled, capability, str(_target_triton(plan))):
        print(f"  {line}")
    _require_fit(compiled, capability, int(gpu["shared_memory_per_block"]))
    for line in (*_not_written(plan), *_check_flashinfer(plan, capability, environ)):
        print(f"  {line}")
    if record and compiled:
        print(f"  recorded in {write_records(_records(compiled, capability), evidence_folder())}")


def kernel_requests(plan: Plan) -> list[tuple[KernelChoice, Request]]:
    """What is to be compiled of a GPU's plan, each with the first row that launches it."""
    gpu = plan.hardware["gpu"]
    assert isinstance(gpu, Mapping)
    major, minor = str(gpu["compute_capability"]).split(".")
    return [
        (rows[0], _request(plan, rows, card, (int(major), int(minor))))
        for rows, card in _kernels(plan)
        if card.builds
    ]


def _kernels(plan: Plan) -> Iterator[tuple[tuple[KernelChoice, ...], KernelCard]]:
    """Each kernel with the same format and constants once, with the rows of all phases that it serves."""
    cards = {(card.op, card.name): card for card in CARDS}
    same: dict[tuple[str, ...], list[KernelChoice]] = {}
    for row in plan.kernels:
        same.setdefault((row.op, row.kernel, row.format, str(row.constants)), []).append(row)
    for rows in same.values():
        yield tuple(rows), cards[rows[0].op, rows[0].kernel]


def _require_triton() -> None:
    if find_spec("triton") is None:
        raise Failure(
            "`ft check --kernels` compiles with Triton, which is not installed here: nothing was compiled",
            exit_code=REFUSED,
            hint='`pip install "firmtoken[kernels]"`, or `pip install -e ".[kernels]"` in a clone',
        )


def _request(
    plan: Plan, rows: Sequence[KernelChoice], card: KernelCard, capability: tuple[int, int]
) -> Request:
    """Of all launches in all these phases."""
    forms = {str(form): form for row in rows for form in launch_forms(plan, row)}
    return Request(
        builds=card.builds,
        constants=rows[0].constants,
        capability=capability,
        format=rows[0].format,
        num_rows=max(most_rows(plan, row) for row in rows),
        forms=tuple(forms[text] for text in sorted(forms)),
    )


def _compile_all(
    requests: Sequence[tuple[KernelChoice, Request]], environ: Mapping[str, str]
) -> list[Compiled]:
    progress = CountProgress(
        "compiling kernel", total=len(requests), on_terminal=sys.stderr.isatty()
    )
    compiled = []
    try:
        for row, request in requests:
            progress.begin(f"{row.op} {row.kernel}")
            compiled.append(_compile(row, request, environ))
    finally:
        progress.end()
    return compiled


def _compile(row: KernelChoice, request: Request, environ: Mapping[str, str]) -> Compiled:
    try:
        result = compile_kernel(request, limit_s=LIMIT_S, environ=environ)
    except NotCompiled as error:
        raise Failure(
            f"`{row.kernel}` of `{row.op}`: compiling it for capability {'.'.join(map(str, request.capability))} "
            f"{error}",
            exit_code=REFUSED,
            hint="this is a fault of the kernel or of this Triton: please report it",
        ) from error
    return Compiled(row=row, request=request, result=result)


def _table(compiled: Sequence[Compiled], capability: str, target: str) -> Iterator[str]:
    if not compiled:
        return
    version = compiled[0].result.triton
    yield (
        f"kernels for capability {capability}, compiled with Triton {version}, not run (registers of a thread, "
        "shared memory of a block, programs of the largest launch):"
    )
    rows = [("", "registers", "shared", "programs")]
    for one in compiled:
        rows += [(f"{one.row.op} {one.row.kernel}", "", "", ""), *_rows(one.result.builds)]
    yield from (f"  {line}" for line in columns(rows, "<>>>"))
    if version != target:
        yield from paragraph(
            f"the target has Triton {target}, so this shows nothing certain about it, and its plan does not say "
            "`compiled`"
        )


def _rows(builds: Sequence[Built]) -> Iterator[tuple[str, str, str, str]]:
    """A row each; forms that differ in nothing shown are one, and others of one name have other programs."""
    yield from dict.fromkeys(
        (
            f"  {built.name}",
            str(built.registers),
            f"{built.shared_bytes:,} B",
            " x ".join(f"{programs:,}" for programs in built.grid),
        )
        for built in builds
    )


def _require_fit(compiled: Sequence[Compiled], capability: str, shared_memory: int) -> None:
    for one in compiled:
        for built in one.result.builds:
            if fault := unfit(built, shared_memory_per_block=shared_memory):
                raise Failure(
                    f"`{one.row.kernel}` of `{one.row.op}`, built for {built.name}, does not fit capability "
                    f"{capability}: it {fault}",
                    exit_code=REFUSED,
                    hint="its constants are the card's, no profile sets them: please report it",
                )


def _not_written(plan: Plan) -> Iterator[str]:
    """What was not compiled, so that nobody takes silence for a proof."""
    names = [
        f"{rows[0].op} {rows[0].kernel}"
        for rows, card in _kernels(plan)
        if not card.builds and FLASHINFER not in card.requires
    ]
    if names:
        yield from paragraph(
            f"not compiled, having no Triton source: {', '.join(names)}",
            indent="  ",
            first="",
        )


def _check_flashinfer(plan: Plan, capability: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Each module that the plan names, built or not; raises `Failure` where nvcc or flashinfer refuses."""
    for (row, *_), card in _kernels(plan):
        if FLASHINFER not in card.requires:
            continue
        found = {
            FLASHINFER: find_spec(FLASHINFER),
            **{tool: which(tool, path=environ.get("PATH")) for tool in ("nvcc", "ninja")},
        }
        if missing := [name for name, where in found.items() if where is None]:
            yield f"not compiled: {row.op} {row.kernel}, because not here: {', '.join(missing)}"
        else:
            yield _build_flashinfer(row, capability, environ)


def _build_flashinfer(row: KernelChoice, capability: str, environ: Mapping[str, str]) -> str:
    say(f"compiling {row.op} {row.kernel} with nvcc, which takes minutes", None)
    module = FlashinferModule(
        backend=row.kernel.removeprefix(f"{FLASHINFER}_"),
        kv_dtype=row.format,
        head_dim=int(row.constants["head_dim"]),
    )
    try:
        answer = run_worker(
            "firmtoken.runtime.kernels.attention.build_flashinfer",
            module,
            limit_s=FLASHINFER_LIMIT_S,
            environ={**environ, "FLASHINFER_CUDA_ARCH_LIST": capability},
        )
    except NotCompiled as error:
        raise Failure(
            f"`{row.kernel}` of `{row.op}`: building it for capability {capability} {error}",
            exit_code=REFUSED,
            hint=f"name another kernel: `kernels.{row.op}.{row.phase}`",
        ) from error
    built = msgspec.json.decode(answer, type=FlashinferBuilt)
    return (
        f"compiled with nvcc, not linked: {row.op} {row.kernel} of flashinfer {built.flashinfer}, "
        f"{row.format} keys and values, heads of {module.head_dim}: {built.objects} objects in "
        f"{built.seconds:.0f} s"
    )


def _target_triton(plan: Plan) -> object:
    software = plan.hardware["software"]
    return software["triton"] if isinstance(software, Mapping) else None


def _records(compiled: Sequence[Compiled], capability: str) -> tuple[KernelRecord, ...]:
    return tuple(
        KernelRecord(
            op=one.row.op,
            kernel=one.row.kernel,
            source=source_hash(one.request.builds),
            format=one.request.format,
            constants=one.row.constants,
            forms=tuple(map(str, one.request.forms)),
            rows=one.request.num_rows,
            capability=capability,
            triton=one.result.triton,
            date=date.today().isoformat(),
            builds=tuple(
                BuildRecord(
                    name=built.name,
                    registers=built.registers,
                    local_bytes=built.local_bytes,
                    shared_bytes=built.shared_bytes,
                )
                for built in one.result.builds
            ),
        )
        for one in compiled
    )
