"""What the plan's own model of speed says to the questions of `ft bench`."""

from firmtoken.compiler.conversation import first_token_s
from firmtoken.compiler.machine import describe_machine
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_costs import plan_costs, plan_residency
from firmtoken.compiler.speed import decode_device_s, decode_step_s, step_host_s
from firmtoken.schema.profile import Profile


class PlanEstimates:
    """Of one plan; nothing here was measured."""

    def __init__(self, profile: Profile, plan: Plan) -> None:
        _, facts = describe_model(profile)
        self._costs = plan_costs(describe_machine(profile.hardware), facts, plan)
        self._residency = plan_residency(plan)
        self._below = plan.schedule.on_demand_below
        self.device_bytes = plan.memory.device.total

    def step_s(self, depth: int, *, streams: int = 1) -> float:
        """Seconds of a decode step of so many streams with `depth` tokens before each."""
        return decode_step_s(self._costs, self._residency, sequences=streams, depth=depth)

    def device_step_s(self, depth: int, *, streams: int) -> float:
        """The device's part of it."""
        return decode_device_s(self._costs, self._residency, sequences=streams, depth=depth)

    @property
    def step_host_s(self) -> float:
        """The host's part of a decode step."""
        return step_host_s(self._costs.machine)

    def first_token_s(self, tokens: int, depth: int = 0) -> float:
        """Seconds to the first token after `tokens` new ones that follow `depth` cached ones."""
        return first_token_s(self._costs, self._residency, self._below, tokens, depth)
