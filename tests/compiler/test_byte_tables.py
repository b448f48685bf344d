"""The byte tables of facts/models.md 3.10 and 4, to the integer, against what the families and slots say."""

from pathlib import Path

import pytest

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.ledger_lines import page_bytes
from firmtoken.compiler.passes.choose_cache import choose_cache
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.schema.load import load_profile
from firmtoken.schema.profile import Profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
QWEN36, QWEN35, ORNITH = "qwen3.6-35b-a3b-nvfp4", "qwen3.5-35b-a3b", "ornith-1.5-35b-a3b-nvfp4"
QWEN3, MINIMAX = "qwen3-30b-a3b-nvfp4", "minimax-m2.5-nvfp4"
MODELS = (QWEN36, QWEN35, ORNITH, QWEN3, MINIMAX)
FP32_SCALAR = 4
MORE = 2
"""Bytes by which an element grows that the checkpoint has in bf16 and the device in fp32."""


def profile_of(model: str, *overrides: str) -> Profile:
    override = f"model={PROFILES}/models/{model}.yaml"
    return load_profile(str(PROFILES / "h200-qwen.yaml"), [override, *overrides]).profile


def facts_of(model: str, *overrides: str) -> ModelFacts:
    return describe_model(profile_of(model, *overrides))[1]


def held(facts: ModelFacts, *names: str) -> int:
    """Bytes of these tensors over all layers."""
    return sum(row.bytes * facts.count(row.axis) for row in facts.tensors if row.name in names)


def fp32_elements(facts: ModelFacts) -> int:
    """Norms and the like: the tables count them in bf16, as the checkpoint has them."""
    rows = [row for row in facts.tensors if row.dtype == "fp32"]
    return sum(row.bytes // 4 * facts.count(row.axis) for row in rows)


@pytest.mark.parametrize(
    ("hidden", "width", "nvfp4", "bf16"),
    [
        (2048, 512, 1_769_472, 6_291_456),
        (2048, 768, 2_654_208, 9_437_184),
        (3072, 1536, 7_962_624, 28_311_552),
        (5120, 1536, 13_271_040, 47_185_920),
        (4096, 1408, 9_732_096, 34_603_008),
    ],
    ids=["Qwen3.6-35B and Qwen3-Next", "Qwen3-30B", "MiniMax-M2.5", "GLM-4.7", "GLM-4.5-Air"],
)
def test_an_expert_takes_what_table_3_10_says(
    hidden: int, width: int, nvfp4: int, bf16: int
) -> None:
    parts = slot_parts("nvfp4", hidden, width)
    assert sum(part.bytes for part in parts if part.name != "globals") == nvfp4
    assert sum(part.bytes for part in parts) == nvfp4 + 3 * FP32_SCALAR
    assert sum(part.bytes for part in slot_parts("bf16", hidden, width)) == bf16


@pytest.mark.parametrize(
    ("model", "experts", "per_layer", "total"),
    [
        (QWEN36, 10_240, 452_984_832, 18_119_393_280),
        (QWEN3, 6_144, 339_738_624, 16_307_453_952),
        (MINIMAX, 15_872, 2_038_431_744, 126_382_768_128),
    ],
)
def test_all_experts_take_what_table_3_10_says(
    model: str, experts: int, per_layer: int, total: int
) -> None:
    facts = facts_of(model)
    parts = slot_parts("nvfp4", facts.hidden_size, facts.expert_width)
    packed = sum(part.bytes for part in parts if part.name != "globals")
    assert facts.total_experts == experts
    assert packed * facts.experts_per_layer == per_layer
    assert packed * experts == total


def test_minimax_experts_with_their_globals_are_the_census_of_the_header_table() -> None:
    # Table 3.10: 126,382,958,592 B. A slot adds its padding to 256.
    parts = slot_parts("nvfp4", 3072, 1536)
    assert sum(part.bytes for part in parts) * 15_872 == 126_382_958_592
    assert slot_bytes(parts) == 7_962_880


def test_what_is_no_expert_in_qwen3_6_takes_what_table_3_10_says() -> None:
    facts = facts_of(QWEN36)
    assert held(facts, "embed") == 1_017_118_720
    assert held(facts, "lm_head") == 286_064_640 + FP32_SCALAR
    # 251 weight scales: 120 of shared experts, 1 of the head, 90 of linear and 40 of full attention.
    scales = 251 * FP32_SCALAR
    # 40 x 2 x 2048 norms, 30 x (128 + 2 x 32) of linear layers, 10 x 2 x 256 of full ones, 2048 at the end.
    assert fp32_elements(facts) == 176_768
    assert facts.dense_bytes == 2_705_515_776 + scales + 176_768 * MORE
    layers = facts.dense_bytes - held(facts, "embed", "lm_head", "final_norm")
    final = 2_048
    assert layers == 1_402_328_320 + scales - FP32_SCALAR + (176_768 - final) * MORE


def test_everything_of_qwen3_5_that_is_no_expert_takes_what_table_3_10_says_in_bf16() -> None:
    facts = facts_of(QWEN35)
    assert fp32_elements(facts) == 176_768
    assert facts.dense_bytes == 4_896_711_936 + 176_768 * MORE


def test_what_is_no_expert_in_qwen3_30b_takes_what_table_3_10_says_in_bf16() -> None:
    facts = facts_of(QWEN3, "model.quantization.attention=bf16")
    assert held(facts, "qkv_proj", "attn_out") == 1_811_939_328
    assert held(facts, "embed") == held(facts, "lm_head") == 622_329_856
    # 48 x (2 x 2048 + 2 x 128) norms, 2048 at the end.
    assert fp32_elements(facts) == 210_944
    assert facts.dense_bytes == 3_082_186_752 + 210_944 * MORE
    experts = facts.total_experts * sum(
        part.bytes for part in slot_parts("bf16", facts.hidden_size, facts.expert_width)
    )
    assert round((facts.dense_bytes - 210_944 * MORE + experts) / 1e9, 2) == 61.06


def test_attention_of_qwen3_30b_is_packed_in_nvidias_checkpoint() -> None:
    # The bf16 figure of table 3.10 at 9/32: half a byte an element, and a scale a byte wide for each 16.
    facts = facts_of(QWEN3)
    assert held(facts, "qkv_proj", "attn_out") == 1_811_939_328 * 9 // 32 + 48 * 4 * FP32_SCALAR


def test_what_is_no_expert_in_minimax_takes_what_table_3_10_says() -> None:
    facts = facts_of(MINIMAX)
    assert held(facts, "qkv_proj", "attn_out") == 5_460_983_808
    assert held(facts, "embed", "lm_head") == 2_458_386_432
    assert held(facts, "router") == 97_517_568
    # 62 x (2 x 3072 + 6144 + 1024) norms, 62 x 256 biases, 3072 at the end.
    assert fp32_elements(facts) == 844_288
    assert facts.dense_bytes == 8_018_576_384 + 844_288 * MORE
    experts = facts.total_experts * sum(
        part.bytes
        for part in slot_parts("nvfp4", facts.hidden_size, facts.expert_width)
        if part.name != "globals"
    )
    assert round((facts.dense_bytes - 844_288 * MORE + experts) / 1e9, 2) == 134.40


@pytest.mark.parametrize(
    ("model", "bf16", "fp8", "tokens_per_gib"),
    [
        (QWEN36, 20_480, 10_240, 52_428),
        (QWEN35, 20_480, 10_240, 52_428),
        (ORNITH, 20_480, 10_240, 52_428),
        (QWEN3, 98_304, 49_152, 10_922),
        (MINIMAX, 253_952, 126_976, 4_228),
    ],
)
def test_a_token_of_keys_and_values_takes_what_table_4_says(
    model: str, bf16: int, fp8: int, tokens_per_gib: int
) -> None:
    for dtype, per_token in (("bf16", bf16), ("fp8", fp8)):
        profile = profile_of(model, f"cache.kv_dtype={dtype}")
        _, facts = describe_model(profile)
        cache = choose_cache(profile, facts)
        assert page_bytes(facts, cache) == cache.page_size * per_token
        if dtype == "bf16":
            assert 2**30 * cache.page_size // page_bytes(facts, cache) == tokens_per_gib


def test_the_tokens_that_a_user_reported_take_what_table_4_says() -> None:
    assert 712_629 * facts_of(QWEN36).kv_elements_per_token * 2 == 14_594_641_920


@pytest.mark.parametrize("model", [QWEN36, QWEN35, ORNITH])
def test_the_states_of_a_sequence_take_what_table_4_says(model: str) -> None:
    profile = profile_of(model)
    _, facts = describe_model(profile)
    assert facts.recurrent_elements * 4 == 2_097_152
    assert facts.conv_elements * 2 == 49_152
    assert choose_cache(profile, facts).state_bytes_per_sequence == 64_389_120


def test_a_qwen3_next_geometry_takes_what_both_tables_say() -> None:
    shape = ("model.geometry.num_layers=48", "model.geometry.num_experts=512")
    profile = profile_of(QWEN36, *shape, "cache.kv_dtype=bf16")
    _, facts = describe_model(profile)
    assert facts.total_experts == 24_576
    assert 1_769_472 * facts.experts_per_layer == 905_969_664
    assert facts.kv_elements_per_token * 2 == 24_576
    assert choose_cache(profile, facts).state_bytes_per_sequence == 77_266_944


@pytest.mark.parametrize("model", [QWEN3, MINIMAX])
def test_a_model_without_linear_layers_has_no_states(model: str) -> None:
    profile = profile_of(model)
    _, facts = describe_model(profile)
    assert choose_cache(profile, facts).state_bytes_per_sequence == 0


def test_every_family_has_a_model_here() -> None:
    assert {facts_of(model).family for model in MODELS} == {family.name for family in FAMILIES}
