"""The plain loop is right: its logits are transformers' on the embedded checkpoint, decoded by its own reader."""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "profiles" / "weights" / "tiny-moe"
PlainLoop = runpy.run_path(str(Path(__file__).with_name("plain_loop.py")))["PlainLoop"]


@pytest.fixture(scope="module")
def loop() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small only wait for a second thread
    yield PlainLoop(FOLDER)
    torch.set_num_threads(threads)


def transformers_model(weights: dict[str, torch.Tensor]) -> Qwen3_5MoeForCausalLM:
    values = json.loads((FOLDER / "config.json").read_text())["text_config"]
    config = Qwen3_5MoeTextConfig(
        **{key: value for key, value in values.items() if key not in ("model_type", "dtype")}
    )
    config._attn_implementation = config._experts_implementation = "eager"
    model = Qwen3_5MoeForCausalLM(config).float().eval()

    def experts(layer: str, *halves: str) -> torch.Tensor:
        stem = f"layers.{layer}.mlp.experts"
        return torch.stack(
            [
                torch.cat([weights[f"{stem}.{expert}.{half}_proj"] for half in halves])
                for expert in range(config.num_experts)
            ]
        )

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            short = name.removeprefix("model.").removesuffix(".weight")
            if short.endswith("experts.gate_up_proj"):
                parameter.copy_(experts(short.split(".")[1], "gate", "up"))
            elif short.endswith("experts.down_proj"):
                parameter.copy_(experts(short.split(".")[1], "down"))
            else:
                parameter.copy_(weights[short])
    return model


def test_logits_equal_transformers(loop: Any) -> None:
    tokens = torch.randint(0, 4000, (90,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        wanted = transformers_model(loop.weights)(tokens.unsqueeze(0)).logits[0]
    loop.reset()
    got = torch.stack([loop.step(token) for token in tokens.tolist()])
    assert (got - wanted).abs().max() < max(1e-4, 2e-4 * float(wanted.abs().max()))
