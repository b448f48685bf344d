"""From bf16 weights to the checkpoint beside this folder: NVFP4, FP8, scales, index, configuration."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import calibrate
import layout
import number_formats as formats
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

HERE = Path(__file__).parent
LARGEST_SHARD = 9_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--weights", type=Path, nargs="*", help="bf16 safetensors; random if left out"
    )
    parser.add_argument("--out", type=Path, default=HERE.parent)
    arguments = parser.parse_args()
    model = build_model()
    if arguments.weights:
        model.load_state_dict(load_weights(arguments.weights))
    tokenizer = Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
    rows = sample_rows(tokenizer)
    largest = calibrate.largest_inputs(model, rows)
    state = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    write_shards(dict(stored_tensors(state, largest)), arguments.out)
    for name, content in (
        ("config.json", layout.config()),
        ("hf_quant_config.json", layout.hf_quant_config()),
        ("generation_config.json", layout.generation_config()),
    ):
        (arguments.out / name).write_text(json.dumps(content, indent=2) + "\n")


def build_model() -> Qwen3_5MoeForCausalLM:
    """transformers' model in float32 with random weights, exact and slow."""
    torch.manual_seed(0)
    config = Qwen3_5MoeTextConfig(
        **{key: value for key, value in layout.TEXT_CONFIG.items() if key not in _NOT_ARGUMENTS}
    )
    config._attn_implementation = config._experts_implementation = "eager"
    return Qwen3_5MoeForCausalLM(config).float().eval()


_NOT_ARGUMENTS = frozenset(("model_type", "dtype"))


def load_weights(paths: list[Path]) -> dict[str, Tensor]:
    return {name: value.float() for path in paths for name, value in load_file(path).items()}


def sample_rows(tokenizer: Tokenizer) -> list[list[int]]:
    """The held-out questions with their answers, a few in each row."""
    turns = json.loads((HERE / "heldout.json").read_text())
    random.Random(3).shuffle(turns)
    texts = [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        for question, answer in turns
    ]
    return [tokenizer.encode("".join(texts[i : i + 5])).ids for i in range(0, len(texts), 5)]


def stored_tensors(
    state: dict[str, Tensor], largest: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    for name, weight in state.items():
        if layout.FUSED_EXPERTS.search(name):
            yield from _experts(name, weight, largest[name])
        elif layout.NVFP4_MODULES.search(name):
            module = layout.stored_name(name).removesuffix(".weight")
            yield from _nvfp4(module, weight, largest[name])
        elif layout.FP8_MODULES.search(name):
            module = layout.stored_name(name).removesuffix(".weight")
            values, scale = formats.to_fp8(weight)
            yield f"{module}.weight", values
            yield f"{module}.weight_scale", scale
            yield f"{module}.input_scale", largest[name].float() / formats.E4M3_LARGEST
        else:
            yield layout.stored_name(name), weight


def _experts(name: str, weight: Tensor, largest: Tensor) -> Iterator[tuple[str, Tensor]]:
    folder, _, which = layout.stored_name(name).rpartition(".")
    seen = torch.where(largest > 0, largest, largest.amax())  # an expert that no sample reached
    for expert in range(layout.EXPERTS):
        if which == "down_proj":
            yield from _nvfp4(f"{folder}.{expert}.down_proj", weight[expert], seen[expert])
        else:
            gate, up = weight[expert].chunk(2)
            yield from _nvfp4(f"{folder}.{expert}.gate_proj", gate, seen[expert])
            yield from _nvfp4(f"{folder}.{expert}.up_proj", up, seen[expert])


def _nvfp4(module: str, weight: Tensor, largest: Tensor) -> Iterator[tuple[str, Tensor]]:
    matrix = formats.to_nvfp4(weight)
    yield f"{module}.weight", formats.pack(matrix.codes)
    yield f"{module}.weight_scale", matrix.block_scale
    yield f"{module}.weight_scale_2", matrix.global_scale
    yield f"{module}.input_scale", largest.float() / formats.NVFP4_RANGE


def write_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    filled = total = 0
    for name, tensor in sorted(tensors.items()):
        if filled + tensor.nbytes > LARGEST_SHARD:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor.contiguous().clone()
        filled += tensor.nbytes
        total += tensor.nbytes
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
