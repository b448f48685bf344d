"""What the speed of a plan depends on: its machine, its model, the layout and how many experts are on the device."""

from dataclasses import dataclass

from firmtoken.compiler.facts import ModelFacts, Split
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.passes.bound_batches import short_prompt_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Everything that speed depends on and that the split does not change."""

    machine: Machine
    captured: bool
    """Whether decode steps are CUDA graphs."""
    overlaps: bool
    """Whether expert copies have a stream of their own, so that a layer's come while the one before computes."""
    layers: int
    full_layers: int
    """Those with attention over everything before."""
    experts: int
    """Of a layer."""
    routed: int
    slot_bytes: int
    dense_bytes: int
    """What a step reads whatever it routes to."""
    kv_bytes_per_token: int
    state_bytes: int
    """Of one sequence."""
    active_parameters: int
    """That a token multiplies with in the layers."""
    one_expert: int
    """Parameters of one expert."""
    head_parameters: int
    """That the last token of a sequence multiplies with after the layers."""
    flops_per_pair: int
    launches: int
    """Of a decode step."""
    mixer_tile: int
    moe_chunk: int
    resident: bool
    """Whether nothing is ever fetched, so that prompts may be captured too."""

    @property
    def prompt_rows(self) -> tuple[int, ...]:
        """To the next of which a short prompt is padded in its graph; a CPU captures none.

        Nobody has measured one that the host launches, unpadded: it is not taken for the faster way.
        """
        return short_prompt_rows(self.machine.kind, self.mixer_tile)

    @property
    def dense_parameters(self) -> int:
        """That a token multiplies with in the layers beside routed experts."""
        return self.active_parameters - self.layers * self.routed * self.one_expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """How much of the experts is on the device, and the pass over the layers that follows from it."""

    offloaded: bool
    slots: int
    total: int
    span: int
    """Tokens of one pass over the layers."""
    waves: int = 1
    """In how many parts a layer's missing experts pass through a smaller ring; 1: all at once, a layer ahead (D8)."""

    @property
    def fraction(self) -> float:
        """Copies that decode may hit, over all experts."""
        return self.slots / self.total

    @property
    def missing(self) -> int:
        """Experts, over all layers, that a prefill must stream."""
        return self.total - self.slots if self.offloaded else 0


def describe_costs(
    machine: Machine,
    facts: ModelFacts,
    *,
    captured: bool,
    overlaps: bool,
    slot_bytes: int,
    kv_bytes_per_token: int,
    state_bytes: int,
    launches: int,
    mixer_tile: int,
    moe_chunk: int,
    resident: bool,
) -> Costs:
    """Costs of one layout: what a model costs on any, and the layout's own numbers."""
    return Costs(
        machine=machine,
        captured=captured,
        overlaps=overlaps,
        layers=facts.num_layers,
        full_layers=facts.num_full,
        experts=facts.experts_per_layer,
        routed=facts.experts_per_token,
        slot_bytes=slot_bytes,
        dense_bytes=facts.decode_dense_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        state_bytes=state_bytes,
        active_parameters=facts.active_parameters,
        one_expert=facts.expert_parameters,
        head_parameters=facts.vocab_size * facts.hidden_size,
        flops_per_pair=facts.attention_flops_per_pair,
        launches=launches,
        mixer_tile=mixer_tile,
        moe_chunk=moe_chunk,
        resident=resident,
    )


def split_residency(facts: ModelFacts, split: Split) -> Residency:
    """What speed depends on, of a finished split."""
    return Residency(
        offloaded=split.placement == "offload",
        slots=sum(split.experts.slots_per_layer),
        total=facts.total_experts,
        span=split.prefill_span,
        waves=split.experts.waves,
    )
