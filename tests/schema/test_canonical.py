"""What counts for the fingerprint."""

import json
from pathlib import Path

import pytest

from firmtoken.schema.canonical import LEFT_OUT, canonical
from firmtoken.schema.load import load_profile


def data(*overrides: str, name: str = "tiny-cpu") -> str:
    return json.dumps(canonical(load_profile(name, overrides).profile))


def test_keys_are_sorted_and_sizes_are_numbers() -> None:
    found = canonical(load_profile("4090-qwen").profile)
    text = json.dumps(found)
    assert text == json.dumps(found, sort_keys=True)
    assert found["schema"] == "firmtoken/1"
    assert '"memory": 25232932864' in text
    assert "GiB" not in text


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "description=other",
        "server.port=1",
        "model.perplexity.max=7",
        "model.source.path=/elsewhere",
        "hardware.host.threads=2",
    ],
)
def test_what_changes_no_choice_is_left_out(override: str) -> None:
    assert data(override) == data()


def test_all_that_is_left_out_was_tried() -> None:
    assert {
        "name",
        "description",
        "server",
        "model.perplexity",
        "model.source.path",
        "hardware.host.threads",
    } == LEFT_OUT


@pytest.mark.parametrize(
    "override",
    [
        "serving.context=8k",
        "hardware.name=other",
        "hardware.cpu.memory=64MiB",
        "model.source={synthetic: {seed: 1}}",
        "kernels.gdn=torch",
        "kernels.gdn.avoid=[torch]",
        "model.quantization.kv_cache=null",
        "graphs=off",
    ],
)
def test_everything_else_counts(override: str) -> None:
    assert data(override) != data()


def test_a_hub_source_counts() -> None:
    assert data("model.source.revision=abc", name="4090-qwen") != data(name="4090-qwen")


def test_it_does_not_matter_where_and_how_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "model: {extends: ft:models/tiny-moe}\nserving: {output: 512, requests: 4, context: 16384}\n"
        "hardware: {extends: ft:hardware/cpu, cpu: {memory: 100663296}}\n"
        "schema: firmtoken/1\nname: mine\n"
    )
    monkeypatch.chdir(tmp_path)
    assert data("hardware.cpu.memory=96MiB", name="mine.yaml") == data("hardware.cpu.memory=96MiB")
