"""What `ft check --kernels --record` has written: kernels that were compiled for a capability (D14)."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from firmtoken.compiler.evidence import CompiledKernel
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.output import put, yaml_text
from firmtoken.runtime.exit_codes import FAILED
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.references import shipped_folder
from firmtoken.schema.regular_file import read_regular

KERNELS = "firmtoken.runtime.kernels."
IMPORTED = re.compile(r"^from (firmtoken\.[\w.]+) import", re.MULTILINE)
HEADING = (
    "# Written by `ft check --kernels --record`: compiled for this capability, not run. A record counts for the\n"
    "# source, constants, operands, Triton and up to the rows that it names (D14).\n"
)


class BuildRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one compiled form takes."""

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kernel with its constants."""

    op: str
    kernel: str
    source: str
    """sha256 of the files with the Triton source."""
    format: str
    constants: dict[str, int | float | str]
    forms: tuple[str, ...]
    """Operands of its launches (`launch_forms`)."""
    rows: int
    """Of its largest launch."""
    capability: str
    triton: str
    date: str
    builds: tuple[BuildRecord, ...]

    def counts_as(self) -> CompiledKernel:
        """What a plan's rows are compared with."""
        return CompiledKernel(
            op=self.op,
            kernel=self.kernel,
            format=self.format,
            constants=self.constants,
            forms=frozenset(self.forms),
            rows=self.rows,
            capability=self.capability,
            triton=self.triton,
        )


def evidence_folder() -> Path:
    """Beside the shipped profiles."""
    return shipped_folder() / "evidence"


def compiled_kernels(capability: str, folder: Path) -> tuple[CompiledKernel, ...]:
    """Those for one capability whose source has not changed since; raises `Failure` for a broken file."""
    return tuple(
        record.counts_as()
        for path in sorted(folder.glob(f"{_stem(capability)}-*.yaml"))
        for record in read_records(path)
        if _is_current(record)
    )


def read_records(path: Path) -> tuple[KernelRecord, ...]:
    """The records of a file; raises `Failure`."""
    try:
        data = YAML(typ="safe", pure=True).load(read_regular(path))
        return msgspec.convert(data, tuple[KernelRecord, ...])
    except (OSError, YAMLError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Failure(
            f"`{path}` is not evidence that can be read: {error}",
            exit_code=FAILED,
            hint="remove it and run `ft check --kernels --record` again",
        ) from error


def write_records(records: Sequence[KernelRecord], folder: Path) -> Path:
    """Put records of one capability and Triton into their file, which keeps what else counts; raises `Failure`."""
    first = records[0]
    path = folder / f"{_stem(first.capability)}-triton-{first.triton}.yaml"
    replaced = {_identity(record) for record in records}
    kept = [
        record
        for record in (read_records(path) if path.exists() else ())
        if _identity(record) not in replaced and _is_current(record)
    ]
    ordered = sorted((*kept, *records), key=_identity)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise Failure(f"cannot make `{folder}`: {error.strerror}", exit_code=FAILED) from error
    put(HEADING + yaml_text(msgspec.to_builtins(ordered)), str(path))
    return path


@cache
def source_hash(builds: str) -> str:
    """sha256 of the file that a card's `builds` names, of all kernels' files that it imports, and what these import.

    Of the compiler's files, what they import in turn (a plan's whole description) says nothing of a kernel.
    """
    found: dict[str, bytes] = {}
    _collect(builds.partition(":")[0], found)
    listed = sorted((name, hashlib.sha256(text).hexdigest()) for name, text in found.items())
    return hashlib.sha256(msgspec.json.encode(listed)).hexdigest()


def _collect(module: str, found: dict[str, bytes]) -> None:
    """Read a module and what it imports, without importing any of it: Triton need not be here."""
    spec = find_spec(module)
    if module in found or spec is None or spec.origin is None:
        return
    found[module] = Path(spec.origin).read_bytes()
    if module.startswith(KERNELS):
        for name in IMPORTED.findall(found[module].decode()):
            _collect(name, found)


def _identity(record: KernelRecord) -> tuple[str, ...]:
    """Records that differ in it stand side by side."""
    return (
        record.op,
        record.kernel,
        record.format,
        str(record.constants),
        *record.forms,
        str(record.rows),
    )


def _is_current(record: KernelRecord) -> bool:
    """Whether the source that was compiled is the source of now."""
    builds = {(card.op, card.name): card.builds for card in CARDS if card.builds}
    own = builds.get((record.op, record.kernel))
    return own is not None and source_hash(own) == record.source


def _stem(capability: str) -> str:
    return f"kernels-sm{capability.replace('.', '')}"
