"""Values that are fine alone and impossible together: each rule, once broken and once kept."""

from pathlib import Path

import pytest

from firmtoken.schema.contradictions import RULES
from firmtoken.schema.diagnostic import Diagnostic, ProfileError
from firmtoken.schema.load import load_profile

GEOMETRY = "model.geometry"
FULL = (f"{GEOMETRY}.full_attention_interval=1", f"{GEOMETRY}.linear=null")
GPU = (
    "hardware.gpu={compute_capability: '9.0', memory: 2GiB, reserve: 0, bandwidth: 1TB/s, sms: 1,"
    " shared_memory_per_block: 99KiB, l2: 1MiB, flops: {}, context_overhead: 0, launch_us: 1}"
)


def faults(*overrides: str) -> list[Diagnostic]:
    try:
        load_profile("tiny-cpu", overrides)
    except ProfileError as error:
        return list(error.diagnostics)
    return []


@pytest.mark.parametrize(
    ("overrides", "field", "message"),
    [
        ((GPU,), "hardware.gpu", "`gpu` and `cpu` are both given"),
        (("hardware.cpu=null",), "hardware.gpu", "neither `gpu` nor `cpu` is given"),
        (
            (GPU, "hardware.cpu=null", "hardware.link=null"),
            "hardware.gpu",
            "a `gpu` needs a `link`",
        ),
        (
            (GPU, "hardware.cpu=null", "hardware.gpu.reserve=2GiB"),
            "hardware.gpu.reserve",
            "`reserve` and `context_overhead` take `2GiB` of `2GiB`",
        ),
        (
            ("hardware.host.pinnable=5GiB",),
            "hardware.host.pinnable",
            "`pinnable` is above `memory`, which is `4GiB`",
        ),
        (
            ("serving.pool=8k",),
            "serving.pool",
            "a pool of `8192` tokens cannot hold one request of `16384`",
        ),
        (
            ("serving.pool=16k", "serving.context=max"),
            "serving.pool",
            "a pool of `16384` tokens cannot hold one request of `32768`",
        ),
        (
            ("serving.pool=16k", "serving.context=1M"),
            "serving.pool",
            "a pool of `16384` tokens cannot hold one request of `32768`",
        ),
        (("experts.slots=257",), "experts.slots", "`257` slots for `256` experts"),
        (
            ("experts.slots=255", "experts.placement=resident"),
            "experts.slots",
            "`resident` needs a slot for each of `256` experts, not `255`",
        ),
        (
            ("schedule.prefill_chunk=64", "schedule.prefill_span=63"),
            "schedule.prefill_span",
            "a span of `63` tokens is shorter than one chunk of `64`",
        ),
        (
            ("cache.type=radix",),
            "cache.type",
            "`radix` cannot restore the linear-attention layers of this model",
        ),
        (
            ("cache.type=hybrid_radix", *FULL),
            "cache.type",
            "`hybrid_radix` is for models with linear-attention layers",
        ),
        (("cache.page_size=48",), "cache.page_size", "`48` is not a power of two"),
        (
            (f"{GEOMETRY}.num_kv_heads=3",),
            f"{GEOMETRY}.num_kv_heads",
            "`num_kv_heads` (`3`) does not divide `num_q_heads` (`4`)",
        ),
        (
            (f"{GEOMETRY}.linear.num_value_heads=6",),
            f"{GEOMETRY}.linear.num_value_heads",
            "`num_key_heads` (`4`) does not divide `num_value_heads` (`6`)",
        ),
        (
            (f"{GEOMETRY}.rotary_dim=66",),
            f"{GEOMETRY}.rotary_dim",
            "`66` of `64` dimensions cannot be rotated",
        ),
        (
            (f"{GEOMETRY}.rotary_dim=15",),
            f"{GEOMETRY}.rotary_dim",
            "`rotary_dim` (`15`) is not even",
        ),
        (
            (f"{GEOMETRY}.num_experts_per_token=33",),
            f"{GEOMETRY}.num_experts_per_token",
            "a token cannot visit `33` of `32` experts",
        ),
        (
            (f"{GEOMETRY}.num_layers=3",),
            f"{GEOMETRY}.num_layers",
            "none of `3` layers would have full attention",
        ),
        (
            (f"{GEOMETRY}.linear=null",),
            f"{GEOMETRY}.full_attention_interval",
            "a hybrid model needs `linear`",
        ),
        (
            (f"{GEOMETRY}.full_attention_interval=1",),
            f"{GEOMETRY}.full_attention_interval",
            "`linear` is given, but every layer has full attention",
        ),
        (
            (f"{GEOMETRY}.hidden_size=250",),
            f"{GEOMETRY}.hidden_size",
            "`nvfp4` stores groups of 16, which `250` is no multiple of",
        ),
        (
            (f"{GEOMETRY}.moe_intermediate_size=120",),
            f"{GEOMETRY}.moe_intermediate_size",
            "`nvfp4` stores groups of 16, which `120` is no multiple of",
        ),
        (
            (f"{GEOMETRY}.shared_intermediate_size=120",),
            f"{GEOMETRY}.shared_intermediate_size",
            "`nvfp4` stores groups of 16, which `120` is no multiple of",
        ),
        (("server.api_keys.file=/nope",), "server.api_keys.file", "there is no such file"),
        (
            (f"server.api_keys.file=/{'x' * 5000}",),
            "server.api_keys.file",
            "there is no such file",
        ),
    ],
)
def test_a_contradiction_is_refused(overrides: tuple[str, ...], field: str, message: str) -> None:
    assert [(each.field, each.message) for each in faults(*overrides)] == [(field, message)]


@pytest.mark.parametrize(
    "overrides",
    [
        (GPU, "hardware.cpu=null"),
        ("serving.pool=16k",),
        ("serving.output=1M",),
        ("serving.context=auto", "serving.pool=64"),
        ("serving.context=1M", "serving.pool=32k"),
        ("hardware.host.pinnable=auto",),
        ("experts.slots=256", "experts.placement=resident"),
        ("experts.slots=100", "experts.placement=offload"),
        ("schedule.prefill_chunk=64", "schedule.prefill_span=64"),
        ("cache.type=hybrid_radix",),
        ("cache.type=none",),
        ("cache.type=radix", *FULL),
        ("cache.page_size=256",),
        (f"{GEOMETRY}.shared_intermediate_size=0",),
        (f"{GEOMETRY}.hidden_size=250", "model.quantization=null"),
        (f"server.api_keys.file={Path(__file__).resolve()}",),
    ],
)
def test_what_is_possible_is_not_refused(overrides: tuple[str, ...]) -> None:
    assert faults(*overrides) == []


def test_the_value_that_the_user_wrote_is_to_blame() -> None:
    found = faults("serving.context=32k", "serving.pool=32k", f"{GEOMETRY}.num_kv_heads=3")
    assert [str(each) for each in found] == [
        "--set: `model.geometry.num_kv_heads`: `num_kv_heads` (`3`) does not divide `num_q_heads` (`4`)\n"
        "  hint: copy the numbers from the checkpoint's `config.json`"
    ]
    found = faults(f"{GEOMETRY}.num_q_heads=3")
    assert [each.field for each in found] == [f"{GEOMETRY}.num_q_heads"]


def test_contradictions_are_told_beside_other_faults() -> None:
    found = faults("serving.pool=8k", "serving.queue=many", "cache.page_size=48", "cache.type=x")
    assert {each.field for each in found} == {
        "serving.pool",
        "serving.queue",
        "cache.page_size",
        "cache.type",
    }


def test_a_rule_is_skipped_while_one_of_its_fields_is_faulty() -> None:
    found = faults("serving.pool=8k", "serving.context=many")
    assert [each.field for each in found] == ["serving.context"]


def test_a_rule_is_skipped_while_the_file_of_one_of_its_fields_is_missing() -> None:
    found = faults("hardware=nope.yaml", "model=ft:models/nope")
    assert [each.code for each in found] == ["no_file", "no_file"]


def test_the_fields_of_every_rule_exist() -> None:
    profile = load_profile("4090-qwen").profile
    for rule in RULES:
        for field in rule.fields:
            value: object = profile
            for step in field.split("."):
                value = getattr(value, step) if value is not None else None
