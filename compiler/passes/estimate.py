"""`estimate`: what the plan predicts of its own speed."""

from firmtoken.compiler.facts import Batches
from firmtoken.compiler.plan import BytesPerToken, Estimates
from firmtoken.compiler.speed import (
    DECODE_EFFICIENCY,
    KERNEL_S,
    LAYER_S,
    PREFILL_EFFICIENCY,
    REFERENCE_DEPTH,
    Costs,
    Residency,
    device_bytes,
    link_bytes,
    prefill_s,
    speed,
)


def estimate(costs: Costs, residency: Residency, batches: Batches) -> Estimates:
    """Predictions for one stream at depth 8k."""
    predicted = speed(costs, residency, batches.max_num_seqs)
    per_layer = f"{LAYER_S * 1e6:.0f} us a layer and at least {KERNEL_S * 1e6:.0f} us a launch"
    fixed = per_layer if costs.captured else f"{costs.launches} launches"
    return Estimates(
        decode_tokens_per_s=predicted.decode_tokens_per_s,
        prefill_tokens_per_s=predicted.prefill_tokens_per_s,
        ttft_floor_s=prefill_s(costs, residency, 1),
        hit_rate=predicted.hit_rate,
        bytes_per_token=BytesPerToken(
            device=round(device_bytes(costs, sequences=1, depth=REFERENCE_DEPTH)),
            link=round(link_bytes(costs, residency, sequences=1)),
        ),
        because=f"one stream at depth {REFERENCE_DEPTH:,}: bytes read at {DECODE_EFFICIENCY:.0%} of the memory's "
        f"bandwidth, {fixed}, misses of the Q36 route model over the link; "
        f"prefill at {PREFILL_EFFICIENCY:.0%} of peak arithmetic",
    )
