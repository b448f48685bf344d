"""`describe_model`: a family and its geometry to what the planner needs to know."""

from difflib import get_close_matches

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.family import Family, misfits
from firmtoken.schema.profile import Profile


def describe_model(profile: Profile) -> tuple[Family, ModelFacts]:
    """The family and its facts on this profile's device.

    Raises `PlanError` for a family that is not here, or that cannot have this geometry.
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
    return family, family.describe(profile.model, kind)
