"""GET /health, /v1/plan, /v1/stats, /v1/dump: how the server is, what it was told to be, what it did and does."""

from litestar import get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from firmtoken.runtime.engine.messages import Progress
from firmtoken.runtime.server.errors import ModelLoading
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
        running=engine.held.num_running,
        waiting=engine.held.num_waiting,
        progress=_progress(engine.progress) if engine.state == "loading" else None,
        cause=engine.trouble if engine.death is None else engine.death.cause,
        restarts=engine.num_restarts,
    )
    return json_response(health, headers={}, status=200 if ready else 503)


def _progress(progress: Progress) -> LoadProgress:
    return LoadProgress(phase=progress.phase, done=progress.done, total=progress.total)


@get("/v1/plan")
async def get_plan(service: NamedDependency[SkipValidation[Service]]) -> ASGIApp:
    """The plan this server executes, byte for byte."""
    return ASGIResponse(body=service.plan_json, media_type="application/json", status_code=200)


@get("/v1/stats")
async def get_stats(service: NamedDependency[SkipValidation[Service]]) -> ASGIApp:
    """The engine's exact counters, a second old at most; before the first ones, 503."""
    stats = service.engine.stats
    if stats is None:
        service.engine.require_ready()
        raise ModelLoading("the engine has not counted anything yet")
    return json_response(stats, headers={})


@get("/v1/dump")
async def get_dump(service: NamedDependency[SkipValidation[Service]]) -> ASGIApp:
    """What the engine does at this moment, stacks included; it goes on."""
    return json_response(await service.engine.dump(), headers={})
