"""Where a plan's weights come from: the folder of a checkpoint, or the model that they are made for."""

from pathlib import Path

from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan, PlanModel
from firmtoken.compiler.prescribed_routes import ROUTES
from firmtoken.runtime.weights.dotted import put
from firmtoken.schema.model import Model

SEED, ROUTER = "synthetic.seed", "synthetic.routes"


def is_synthetic(plan: Plan) -> bool:
    """Whether nobody has its weights: they are made."""
    return SEED in plan.model.source


def source_folder(plan: Plan) -> Path | None:
    """Where the checkpoint's files are; None when it is not in a folder."""
    path = plan.model.source.get("path")
    return None if path is None else Path(path)


def stored_weights(plan: Plan) -> tuple[Weight, ...]:
    """Rows that a checkpoint has tensors for: all but tables of prescribed experts, which belong to no model."""
    return tuple(weight for weight in plan.weights if weight.name != ROUTES)


def planned_model(planned: PlanModel) -> Model:
    """The profile's model that the plan was made of."""
    geometry: dict[str, object] = {}
    for field, value in planned.geometry.items():
        put(geometry, field, value)
    return Model.model_validate(
        {
            "name": planned.name,
            "family": planned.family,
            "geometry": geometry,
            "quantization": planned.quantization,
            "dialect": planned.dialect,
            "source": {"synthetic": {"seed": int(planned.source[SEED])}},
        }
    )
