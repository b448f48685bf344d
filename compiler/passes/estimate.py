"""`estimate`: what the plan predicts of its own speed."""

from firmtoken.compiler.admission import OUTPUT_RESERVE
from firmtoken.compiler.conversation import predict_conversation
from firmtoken.compiler.estimate_constants import (
    DECODE_EFFICIENCY,
    KERNEL_S,
    LAYER_S,
    PREFILL_EFFICIENCY,
    REFERENCE_DEPTH,
)
from firmtoken.compiler.facts import Batches, CacheChoice, Split
from firmtoken.compiler.plan import BytesPerToken, Estimates, OnDemand
from firmtoken.compiler.speed import (
    Costs,
    Residency,
    bank_stream_s,
    device_bytes,
    link_bytes,
    prefill_s,
    speed,
)
from firmtoken.schema.profile import Profile


def estimate(
    profile: Profile,
    costs: Costs,
    residency: Residency,
    batches: Batches,
    cache: CacheChoice,
    split: Split,
    below: OnDemand,
) -> Estimates:
    """Predictions for one stream at depth 8k, and for an agent's conversation."""
    predicted = speed(costs, residency, batches.max_num_seqs)
    return Estimates(
        decode_tokens_per_s=predicted.decode_tokens_per_s,
        prefill_tokens_per_s=predicted.prefill_tokens_per_s,
        ttft_floor_s=prefill_s(costs, residency, 1),
        hit_rate=predicted.hit_rate,
        bytes_per_token=BytesPerToken(
            device=round(device_bytes(costs, sequences=1, depth=REFERENCE_DEPTH)),
            link=round(link_bytes(costs, residency, sequences=1)),
        ),
        bank_stream_s=bank_stream_s(costs, residency),
        conversation=predict_conversation(
            costs,
            residency,
            cache,
            split,
            below,
            requests=batches.max_num_seqs,
            answer=min(OUTPUT_RESERVE, profile.serving.output),
        ),
        because=_because(costs, residency),
    )


def _because(costs: Costs, residency: Residency) -> str:
    """The model in a sentence, and what it leaves out."""
    terms = [f"bytes read at {DECODE_EFFICIENCY:.0%} of the memory's bandwidth"]
    left_out = ["activations", "padded rows of expert tiles", "steps run beside a prompt", "HTTP"]
    if costs.machine.kind == "cuda":
        terms.append(
            f"{LAYER_S * 1e6:.0f} us a layer and at least {KERNEL_S * 1e6:.0f} us a launch"
        )
    if not costs.captured:
        terms.append(
            f"{costs.launches} launches of {costs.machine.launch_s * 1e6:g} us by the host"
        )
    if residency.offloaded:
        terms.append(
            "missing experts over the link, as many as a router like Qwen3.6's was seen to miss"
        )
        left_out.insert(2, "a conversation's first tokens, which miss more")
    return (
        f"one stream at depth {REFERENCE_DEPTH:,}: {', '.join(terms)}; "
        f"prompts at {PREFILL_EFFICIENCY:.0%} of peak arithmetic; left out: {', '.join(left_out)}"
    )
