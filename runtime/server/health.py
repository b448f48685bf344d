"""GET /health and GET /v1/plan: how the server is, and what it was told to be."""

from litestar import get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from firmtoken.runtime.engine.messages import Progress
from firmtoken.runtime.server.reply import Health, LoadProgress
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.stream import json_response


@get("/health")
async def get_health(service: NamedDependency[SkipValidation[Service]]) -> ASGIApp:
    """200 while requests can be served, else 503: load balancers read the status alone."""
    engine = service.engine
    ready = engine.state == "ready"
    health = Health(
        status="ok" if ready else "unavailable",
        state=engine.state,
        model=service.plan.model,
        effective_context=service.plan.effective_context,
        running=engine.num_running,
        waiting=engine.num_waiting,
        progress=_progress(engine.progress) if engine.state == "loading" else None,
        cause=None if engine.death is None else engine.death.message,
    )
    return json_response(health, headers={}, status=200 if ready else 503)


def _progress(progress: Progress) -> LoadProgress:
    return LoadProgress(phase=progress.phase, done=progress.done, total=progress.total)


@get("/v1/plan")
async def get_plan(service: NamedDependency[SkipValidation[Service]]) -> ASGIApp:
    """The plan this server executes, byte for byte."""
    return ASGIResponse(body=service.plan_json, media_type="application/json", status_code=200)
