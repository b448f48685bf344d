"""`estimate`: what the plan predicts of its own speed."""

from firmtoken.compiler.admission import OUTPUT_RESERVE
from firmtoken.compiler.conversation import predict_conversation
from firmtoken.compiler.costs import Costs, Residency
from firmtoken.compiler.estimate_constants import (
    BANDWIDTH_SHARE,
    PREFILL_LAYER_S,
    PRODUCT_SHARE,
    REFERENCE_DEPTH,
)
from firmtoken.compiler.facts import Batches, CacheChoice, Split
from firmtoken.compiler.kernel_times import launch_s
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.plan import BytesPerToken, Estimates, OnDemand
from firmtoken.compiler.speed import (
    bank_stream_s,
    device_bytes,
    first_token_host_s,
    link_bytes,
    prefill_s,
    speed,
    step_host_s,
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
        ttft_floor_s=prefill_s(costs, residency, 1) + first_token_host_s(costs.machine),
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
    terms = [f"bytes read at {BANDWIDTH_SHARE:.0%} of the memory's bandwidth"]
    prompts = [f"products of prompts at {PRODUCT_SHARE:.0%} of peak arithmetic"]
    left_out = ["activations", "steps run beside a prompt"]
    if costs.machine.kind == "cuda":
        terms += [
            "then the instructions that decode and multiply weights",
            f"{launch_s(costs.machine) * 1e6:g} us a launch",
            f"{step_host_s(costs.machine) * 1e6:g} us of the host",
        ]
        prompts.append(f"{PREFILL_LAYER_S * 1e6:g} us a layer")
    if not costs.captured:
        terms.append(
            f"{costs.launches} launches of {costs.machine.launch_s * 1e6:g} us by the host"
        )
    if residency.offloaded:
        terms.append(
            "missing experts over the link, as many as a router like Qwen3.6's was seen to miss"
        )
        left_out.append("a conversation's first tokens, which miss more")
    return (
        f"one stream at depth {REFERENCE_DEPTH:,}: {', '.join(terms)}; {', '.join(prompts)}; "
        f"{_measured(costs.machine)}; left out: {', '.join(left_out)}"
    )


def _measured(machine: Machine) -> str:
    """Where shares and times were measured: on one GPU, whatever this plan's is."""
    if machine.kind == "cpu":
        return "shares of a CPU's rates were not measured"
    return "shares and times as measured on one H200, whichever GPU this is"
