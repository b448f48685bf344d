"""Do headers, plan and the checkpoint's own config files agree on how each matrix is stored?"""

from collections.abc import Iterator

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.declared import CONFIG, SEPARATE, Declared
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import read_object
from firmtoken.runtime.weights.planned_model import stored_weights
from firmtoken.runtime.weights.quantization import declared
from firmtoken.runtime.weights.stored import Stored, find_expert, find_stored

NAMES = {
    "plain": "BF16, F16 or F32",
    "fp8": "FP8 (F8_E4M3 with `weight_scale`)",
    "nvfp4": "NVFP4 (U8 with its scales)",
}
OTHER_FORMAT = "`ft profile model` writes a model profile of what a checkpoint holds"
MIXED_FILES = "files of two exports lie in one folder; copy or download the whole checkpoint"


def require_format(stored: Stored, kept: str) -> None:
    """Raises `LoadError` for a matrix that is not stored as the device keeps it. Whatever there is becomes fp32."""
    wanted = kept if kept in ("fp8", "nvfp4") else "plain"
    if kept != "fp32" and stored.format != wanted:
        raise _fault(stored, f"{NAMES[wanted]}, as the plan keeps it", OTHER_FORMAT)


def require_declared_formats(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raises `LoadError` for a matrix that is stored otherwise than the folder's config files say.

    What they say of modules that no export quantises does not count: old lists of exceptions forgot the router
    (facts/models.md 3.6). bf16, fp16 and fp32 are one: attention may be in fp32 whatever the config says (3.4).
    """
    config, separate = checkpoint.folder / CONFIG, checkpoint.folder / SEPARATE
    if not config.exists():
        return
    stated = declared(
        read_object(config, MIXED_FILES),
        read_object(separate, MIXED_FILES) if separate.exists() else None,
    )
    for module, may_be_quantised, stored in _modules(plan, checkpoint):
        said = (stated.format_of(module) or "plain") if may_be_quantised else "plain"
        if said != stored.format:
            raise _fault(stored, f"{NAMES[said]}, as {_place(stated)} says", MIXED_FILES)


def _place(stated: Declared) -> str:
    return f"`{stated.file}`"


def _modules(plan: Plan, checkpoint: Checkpoint) -> Iterator[tuple[str, bool, Stored]]:
    """Each dense module, and of each layer's experts the first: its logical name, and whether exports quantise it."""
    [family] = [family for family in FAMILIES if family.name == plan.model.family]
    quantised = {module for part in family.config.parts for module in part.modules}
    for layer, kind in enumerate(plan.model.layer_kinds):
        for weight in stored_weights(plan):
            # Tensors outside layers come with the first.
            if weight.axis in ("layer", kind) or (not weight.axis and layer == 0):
                for source in weight.sources:
                    name = source.format(l=layer)
                    stored = find_stored(checkpoint, name)
                    assert stored is not None
                    yield name, source in quantised, stored
        parts = find_expert(
            checkpoint, plan.experts.sources, layer, 0, per_layer=plan.experts.per_layer
        )
        assert parts is not None
        for source, stored in zip(plan.experts.sources, parts, strict=True):
            yield source.format(l=layer, e=0), True, stored


def _fault(stored: Stored, expected: str, hint: str) -> LoadError:
    return LoadError(
        file=stored.weight.file,
        tensor=stored.weight.name,
        expected=expected,
        found=stored.weight.dtype,
        hint=hint,
    )
