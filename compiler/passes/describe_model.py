"""`describe_model`: a family and its geometry to what the planner needs to know."""

from collections.abc import Iterator
from difflib import get_close_matches

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.family import Family, misfits
from firmtoken.compiler.prescribed_routes import with_routes
from firmtoken.schema.profile import Profile


def describe_model(profile: Profile) -> tuple[Family, ModelFacts]:
    """The family and its facts on this profile's device.

    Raises `PlanError` for a family that is not here, that cannot have this geometry, or whose rows no kernel reads in
    these formats.
    """
    name = profile.model.family
    families = {family.name: family for family in FAMILIES}
    if name not in families:
        close = get_close_matches(name, families, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(families)}"
        refusal = Refusal(
            field="model.family",
            message=f"unknown model family `{name}`",
            hint=hint,
            code="unknown_family",
        )
        raise PlanError((refusal,))
    family = families[name]
    if refusals := tuple(misfits(family, profile.model.geometry)):
        raise PlanError(refusals)
    kind = "cpu" if profile.hardware.cpu is not None else "cuda"
    facts = family.describe(profile.model, kind)
    if refusals := tuple(_mixtures(family, facts)):
        raise PlanError(refusals)
    return family, with_routes(facts, profile.model)


def _mixtures(family: Family, facts: ModelFacts) -> Iterator[Refusal]:
    """Rows in NVFP4 above rows in another format: kernels read a tail below FP8 only."""
    for tensor in facts.tensors:
        others = [part for part in tensor.parts if part.format != tensor.dtype]
        if tensor.dtype != "nvfp4" or not others:
            continue
        [field] = [part.field for part in family.config.parts if tensor.sources[0] in part.modules]
        yield Refusal(
            field=f"model.quantization.{field}",
            message=f"no kernel takes `{tensor.name}` in nvfp4 with rows in {others[0].format} below",
            hint="serve a checkpoint of another format, or on another device",
            code="no_kernel",
        )
