"""A plan's synthetic weights, without files: headers like a checkpoint's, and who makes the bytes behind them."""

from pathlib import Path

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.header import TensorHeader
from firmtoken.runtime.weights.planned_model import SEED, planned_model
from firmtoken.runtime.weights.preflight import Inventory, take_inventory
from firmtoken.runtime.weights.synthetic import SyntheticWeights, num_bytes


def synthetic_inventory(plan: Plan) -> Inventory:
    """As `preflight` finds it in the folder that `ft synth` writes for the same model and seed."""
    model = planned_model(plan.model)
    weights = SyntheticWeights(model, int(plan.model.source[SEED]))
    [family] = [family for family in FAMILIES if family.name == model.family]
    headers = {
        tensor.name: TensorHeader(
            name=tensor.name,
            file=SEED,
            dtype=tensor.dtype,
            shape=tensor.shape,
            bytes=num_bytes(tensor),
            offset=0,  # each is a stream of its own
        )
        for tensor in weights.tensors.values()
    }
    checkpoint = Checkpoint(
        folder=Path(SEED), tensors=headers, prefix=family.config.prefix, maker=weights
    )
    return take_inventory(plan, checkpoint)
