"""GET /v1/models and /v1/models/{id}: the one model, with its effective context."""

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, SkipValidation
from litestar.types import ASGIApp

from firmtoken.runtime.server.reply import ModelCard, ModelList
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.stream import json_response


@get("/v1/models")
async def list_models(service: NamedDependency[SkipValidation[Service]]) -> ASGIApp:
    """The model, also while it loads: clients poll this first."""
    return json_response(ModelList(object="list", data=[_card(service)]), headers={})


@get("/v1/models/{model_id:path}")
async def get_model(
    model_id: FromPath[str], service: NamedDependency[SkipValidation[Service]]
) -> ASGIApp:
    """The model of that name; names may hold slashes."""
    service.check_model(model_id.lstrip("/"))
    return json_response(_card(service), headers={})


def _card(service: Service) -> ModelCard:
    context = service.plan.effective_context
    return ModelCard(
        id=service.plan.model,
        object="model",
        created=service.started_at,
        owned_by="firmtoken",
        max_model_len=context,
        context_length=context,
    )
