"""Values that are fine alone and impossible together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firmtoken.schema.diagnostic import Fault
from firmtoken.schema.units import BYTES, show

Auto = Literal["auto"]


CHECKPOINT = "copy the numbers from the checkpoint's `config.json`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check of several fields; it is skipped while one of them is faulty."""

    fields: tuple[str, ...]
    """The fault is shown at one of them, the first if nothing else decides."""
    check: Callable[..., Fault | None]
    """Takes the fields' values in this order."""


def contradiction(message: str, hint: str) -> Fault:
    return Fault(code="contradiction", message=message, hint=hint)


def one_device(gpu: object, cpu: object) -> Fault | None:
    if gpu is not None and cpu is not None:
        return contradiction("`gpu` and `cpu` are both given", "remove one, or set it to `null`")
    if gpu is None and cpu is None:
        return contradiction(
            "neither `gpu` nor `cpu` is given", "describe the device as one of them"
        )
    return None


def linked_gpu(gpu: object, link: object) -> Fault | None:
    if gpu is not None and link is None:
        return contradiction(
            "a `gpu` needs a `link`", "add `link: {h2d: ..., gather: ..., d2h: ...}`"
        )
    return None


def usable_gpu_memory(reserve: int, overhead: int, memory: int) -> Fault | None:
    if reserve + overhead >= memory:
        taken = show(reserve + overhead, BYTES)
        return contradiction(
            f"`reserve` and `context_overhead` take `{taken}` of `{show(memory, BYTES)}`",
            "lower one of them, or correct `memory`",
        )
    return None


def pinnable_memory(pinnable: int | Auto, memory: int) -> Fault | None:
    if isinstance(pinnable, int) and pinnable > memory:
        most = show(memory, BYTES)
        return contradiction(
            f"`pinnable` is above `memory`, which is `{most}`",
            f"lower `pinnable` to at most `{most}`, or raise `memory`",
        )
    return None


def pool_holds_context(pool: int | Auto, context: int | str, positions: int) -> Fault | None:
    # A context above the model's positions holds no more than those (D2).
    asked = positions if context == "max" else context
    asked = min(asked, positions) if isinstance(asked, int) else asked
    if isinstance(pool, int) and isinstance(asked, int) and pool < asked:
        return contradiction(
            f"a pool of `{pool}` tokens cannot hold one request of `{asked}`",
            f"raise `pool` to at least `{asked}`, or lower `context`",
        )
    return None


def resident_slots(
    slots: int | Auto, placement: str, num_layers: int, num_experts: int
) -> Fault | None:
    total = num_layers * num_experts
    if slots == "auto":
        return None
    if slots > total:
        return contradiction(
            f"`{slots}` slots for `{total}` experts", f"write at most `{total}`, or `auto`"
        )
    if placement == "resident" and slots < total:
        return contradiction(
            f"`resident` needs a slot for each of `{total}` experts, not `{slots}`",
            "remove `slots`, or use `placement: offload`",
        )
    return None


def span_holds_chunk(span: int | Auto, chunk: int | Auto) -> Fault | None:
    if isinstance(span, int) and isinstance(chunk, int) and span < chunk:
        return contradiction(
            f"a span of `{span}` tokens is shorter than one chunk of `{chunk}`",
            f"raise `prefill_span` to at least `{chunk}`, or lower `prefill_chunk`",
        )
    return None


def cache_suits_model(cache: str, interval: int) -> Fault | None:
    if cache == "radix" and interval > 1:
        return contradiction(
            "`radix` cannot restore the linear-attention layers of this model",
            "use `hybrid_radix` or `none`",
        )
    if cache == "hybrid_radix" and interval == 1:
        return contradiction(
            "`hybrid_radix` is for models with linear-attention layers", "use `radix` or `none`"
        )
    return None


def page_is_power_of_two(page_size: int | Auto) -> Fault | None:
    if page_size == "auto" or page_size.bit_count() == 1:
        return None
    below = 1 << (page_size.bit_length() - 1)
    return contradiction(
        f"`{page_size}` is not a power of two",
        f"did you mean `{below}` or `{min(2 * below, 256)}`?",
    )


def grouped_heads(num_kv_heads: int, num_q_heads: int) -> Fault | None:
    return divides("num_kv_heads", num_kv_heads, "num_q_heads", num_q_heads)


def linear_heads(num_key_heads: int, num_value_heads: int) -> Fault | None:
    return divides("num_key_heads", num_key_heads, "num_value_heads", num_value_heads)


def divides(small: str, divisor: int, large: str, number: int) -> Fault | None:
    if number % divisor:
        return contradiction(
            f"`{small}` (`{divisor}`) does not divide `{large}` (`{number}`)", CHECKPOINT
        )
    return None


def rotary_width(rotary_dim: int, head_dim: int) -> Fault | None:
    if rotary_dim > head_dim:
        return contradiction(
            f"`{rotary_dim}` of `{head_dim}` dimensions cannot be rotated", CHECKPOINT
        )
    if rotary_dim % 2:
        return contradiction(f"`rotary_dim` (`{rotary_dim}`) is not even", CHECKPOINT)
    return None


def experts_per_token(num_experts_per_token: int, num_experts: int) -> Fault | None:
    if num_experts_per_token > num_experts:
        return contradiction(
            f"a token cannot visit `{num_experts_per_token}` of `{num_experts}` experts",
            CHECKPOINT,
        )
    return None


def layer_pattern(interval: int, num_layers: int, linear: object) -> Fault | None:
    if interval > num_layers:
        return contradiction(f"none of `{num_layers}` layers would have full attention", CHECKPOINT)
    if interval > 1 and linear is None:
        return contradiction(
            "a hybrid model needs `linear`", "describe its linear-attention layers"
        )
    if interval == 1 and linear is not None:
        return contradiction(
            "`linear` is given, but every layer has full attention",
            "remove `linear`, or set `full_attention_interval`",
        )
    return None


NVFP4_GROUP = 16


def nvfp4_groups(width: int, *formats: str) -> Fault | None:
    if "nvfp4" in formats and width % NVFP4_GROUP:
        return contradiction(
            f"`nvfp4` stores groups of {NVFP4_GROUP}, which `{width}` is no multiple of",
            CHECKPOINT,
        )
    return None


def key_file(file: str) -> Fault | None:
    try:
        if Path(file).is_file():
            return None
    except OSError:  # a name too long for any file
        pass
    return Fault(
        code="no_file",
        message="there is no such file",
        hint="one key per line; a relative path starts at the file it is written in",
    )


SHAPE = "model.geometry"
FORMAT = "model.quantization"
RULES = (
    Rule(fields=("hardware.gpu", "hardware.cpu"), check=one_device),
    Rule(fields=("hardware.gpu", "hardware.link"), check=linked_gpu),
    Rule(
        fields=("hardware.gpu.reserve", "hardware.gpu.context_overhead", "hardware.gpu.memory"),
        check=usable_gpu_memory,
    ),
    Rule(fields=("hardware.host.pinnable", "hardware.host.memory"), check=pinnable_memory),
    Rule(
        fields=("serving.pool", "serving.context", f"{SHAPE}.max_position_embeddings"),
        check=pool_holds_context,
    ),
    Rule(
        fields=(
            "experts.slots",
            "experts.placement",
            f"{SHAPE}.num_layers",
            f"{SHAPE}.num_experts",
        ),
        check=resident_slots,
    ),
    Rule(fields=("schedule.prefill_span", "schedule.prefill_chunk"), check=span_holds_chunk),
    Rule(fields=("cache.type", f"{SHAPE}.full_attention_interval"), check=cache_suits_model),
    Rule(fields=("cache.page_size",), check=page_is_power_of_two),
    Rule(fields=(f"{SHAPE}.num_kv_heads", f"{SHAPE}.num_q_heads"), check=grouped_heads),
    Rule(
        fields=(f"{SHAPE}.linear.num_key_heads", f"{SHAPE}.linear.num_value_heads"),
        check=linear_heads,
    ),
    Rule(fields=(f"{SHAPE}.rotary_dim", f"{SHAPE}.head_dim"), check=rotary_width),
    Rule(
        fields=(f"{SHAPE}.num_experts_per_token", f"{SHAPE}.num_experts"), check=experts_per_token
    ),
    Rule(
        fields=(f"{SHAPE}.full_attention_interval", f"{SHAPE}.num_layers", f"{SHAPE}.linear"),
        check=layer_pattern,
    ),
    Rule(
        fields=(
            f"{SHAPE}.hidden_size",
            f"{FORMAT}.experts",
            f"{FORMAT}.shared_expert",
            f"{FORMAT}.lm_head",
            f"{FORMAT}.attention",
            f"{FORMAT}.linear_attention",
        ),
        check=nvfp4_groups,
    ),
    Rule(fields=(f"{SHAPE}.moe_intermediate_size", f"{FORMAT}.experts"), check=nvfp4_groups),
    Rule(
        fields=(f"{SHAPE}.shared_intermediate_size", f"{FORMAT}.shared_expert"), check=nvfp4_groups
    ),
    Rule(fields=("server.api_keys.file",), check=key_file),
)


def contradictions(values: Mapping[str, object]) -> list[tuple[Rule, Fault]]:
    """The rules that do not hold for the values that are known."""
    broken = []
    for rule in RULES:
        if all(field in values for field in rule.fields):
            fault = rule.check(*(values[field] for field in rule.fields))
            if fault is not None:
                broken.append((rule, fault))
    return broken
