"""What follows when an engine has ended: another one, or none and why."""

from dataclasses import dataclass

from firmtoken.runtime.exit_codes import ENGINE_DIED
from firmtoken.runtime.server.errors import ApiError, Draining, EngineDead, EngineLost
from firmtoken.runtime.server.life import Ending
from firmtoken.runtime.server.restarts import Restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """The decision, for the server and for people."""

    delay_s: float | None
    """Until the next engine starts; None: there is none."""
    death: Ending | None
    """Why there is none: the first cause, where restarts did not help."""
    outcome: str


def decide(
    ending: Ending, *, was_ready: bool, state: str, restarts: Restarts[Ending], now: float
) -> Aftermath:
    """`state` is the server's before the end; a restart that is granted is taken."""
    first = restarts.first_cause(now)
    if ending.exit_code != ENGINE_DIED or (not was_ready and state == "loading"):
        if first is not None and not was_ready:
            # A server that served before is dead of what ended it then: that the next engine cannot start comes on top.
            return _no_more(first, ending.cause)
        return _no_more(ending, "the next would fail alike")
    if state == "draining":
        return _no_more(ending, "the server is shutting down")
    delay = restarts.take(now, ending)
    if delay is None:
        used_up = f"{restarts.most} of {restarts.most} in 10 minutes are used up"
        return _no_more(first or ending, used_up)
    outcome = f"restart {restarts.used(now)} of {restarts.most}"
    return Aftermath(delay_s=delay, death=None, outcome=outcome)


def failure(
    admitted: bool,
    *,
    state: str,
    trouble: str | None,
    death: Ending | None,
    start_s: int,
) -> ApiError:
    """What a request is told that an engine took with it; `admitted`: it had begun."""
    if state == "stopped":
        return Draining("the server is shutting down")
    if state == "restarting":
        told = f"the engine is dead: {trouble}; it is being restarted"
        # One that ran may have caused it: asked again at once, it would do it again.
        return EngineDead(told) if admitted else EngineLost(told, retry_after_s=start_s)
    assert death is not None
    return EngineDead(f"the engine is dead: {death.cause}")


def _no_more(death: Ending, why: str) -> Aftermath:
    return Aftermath(delay_s=None, death=death, outcome=f"no restart: {why}")
