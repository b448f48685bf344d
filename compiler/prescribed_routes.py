"""Experts that are prescribed by position instead of chosen: what synthetic weights need to be measured honestly.

Random routers spread tokens evenly over experts, and no cache lives on that. A table of ids for each layer, drawn with
the statistics of a real router, overwrites what the router has chosen; its weights stay. The row is found from a
token's position and its sequence's place in the launch, so a captured graph can do it, and sequences that run together
are in different conversations.
"""

from dataclasses import replace

from firmtoken.compiler.facts import ModelFacts, TensorFacts, TensorPart
from firmtoken.compiler.family import primitive
from firmtoken.compiler.tensor_bytes import tensor_bytes
from firmtoken.schema.model import Model, SyntheticSource

ROUTES = "routes"
"""The weight row of the tables."""
CONVERSATION = 1024
"""Rows of the table that belong together; sequence s of a launch at position p reads row p + s * CONVERSATION."""
CONVERSATIONS = 8
"""After all of them the table begins again."""
FORMAT = "int32"
PRESCRIBE = primitive("prescribe", "ids", writes="ids", weights="routes:routes[l]", rows="tokens")
"""After the router of every layer."""


def with_routes(facts: ModelFacts, model: Model) -> ModelFacts:
    """The same, and the tables where the model's source asks for them."""
    if not isinstance(model.source, SyntheticSource) or model.source.synthetic.routes is None:
        return facts
    shape = (CONVERSATION * CONVERSATIONS, facts.experts_per_token)
    tables = TensorFacts(
        name=ROUTES,
        axis="layer",
        shape=shape,
        dtype=FORMAT,
        bytes=tensor_bytes(shape, FORMAT),
        parts=(TensorPart(name=ROUTES, shape=shape, format=FORMAT),),
        read_by_decode=False,
    )
    return replace(facts, tensors=(*facts.tensors, tables))


def has_routes(facts: ModelFacts) -> bool:
    """Whether experts are prescribed."""
    return any(tensor.name == ROUTES for tensor in facts.tensors)
