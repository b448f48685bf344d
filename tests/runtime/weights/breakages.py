"""What can be wrong with a copy of the embedded checkpoint, one function each; and a copy that can be changed."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00003.safetensors"
SECOND = "model-00002-of-00003.safetensors"
LAYER = "model.language_model.layers.0."
EXPERT = LAYER + "mlp.experts.5."
QKV = LAYER + "linear_attn.in_proj_qkv."
EMBED = "model.language_model.embed_tokens.weight"


class Copy:
    """A folder of links to another one's files: what is written replaces its link, and harms no other copy."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        for path in source.iterdir():
            if path.is_file():
                (folder / path.name).symlink_to(path)

    def __truediv__(self, name: str) -> Path:
        """That file as one of its own."""
        path = self.folder / name
        if path.is_symlink():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
        return path

    def without(self, name: str) -> Path:
        """Where that file was."""
        (self.folder / name).unlink()
        return self.folder / name

    def json(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        path = self / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    def index(self, change: Callable[[dict[str, str]], None]) -> None:
        self.json(INDEX, lambda content: change(content["weight_map"]))

    def config(self, **changes: object) -> None:
        self.json("config.json", lambda content: content["text_config"].update(changes))

    def tensors(self, file: str, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
        """Another file of weights; the index follows what is in it."""
        path = self / file
        found = load_file(path)
        before = set(found)
        change(found)
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, path)
        gone = before - set(found)

        def follow(weight_map: dict[str, str]) -> None:
            for name in gone:
                weight_map.pop(name)
            weight_map.update(dict.fromkeys(found, file))

        self.index(follow)

    def header(self, file: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Another header before the same data; `change` may return it as text."""
        path = self / file
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        text = change(header)
        encoded = text.encode() if isinstance(text, str) else json.dumps(header).encode()
        path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + length :])

    def number(self, name: str, value: float, file: str = FIRST) -> None:
        """The last number of a tensor."""

        def put(tensors: dict[str, torch.Tensor]) -> None:
            dtype = tensors[name].dtype
            numbers = tensors[name].float()
            numbers.view(-1)[-1] = value
            tensors[name] = numbers.to(dtype)

        self.tensors(file, put)

    def code(self, name: str, value: int) -> None:
        """The last byte of a tensor of such."""

        def put(tensors: dict[str, torch.Tensor]) -> None:
            tensors[name].view(torch.uint8).view(-1)[-1] = value

        self.tensors(FIRST, put)


Breakage = Callable[[Copy], object]


def drop(*names: str) -> Breakage:
    return lambda copy: copy.tensors(FIRST, lambda found: [found.pop(name) for name in names])


def put(name: str, tensor: torch.Tensor) -> Breakage:
    return lambda copy: copy.tensors(FIRST, lambda found: found.update({name: tensor}))


def write(name: str, content: bytes) -> Breakage:
    return lambda copy: (copy / name).write_bytes(content)


def swap(first: str, second: str) -> Breakage:
    def exchange(found: dict[str, torch.Tensor]) -> None:
        found[first], found[second] = found[second], found[first]

    return lambda copy: copy.tensors(FIRST, exchange)


def rename(pairs: Iterable[tuple[str, str]]) -> Breakage:
    def move(found: dict[str, torch.Tensor]) -> None:
        for old, new in pairs:
            found[new] = found.pop(old)

    return lambda copy: copy.tensors(FIRST, move)


def to_other_shard(name: str) -> Breakage:
    def move(copy: Copy) -> None:
        [moved] = [load_file(copy.folder / FIRST)[name]]
        copy.tensors(FIRST, lambda found: [found.pop(name)])
        copy.tensors(SECOND, lambda found: found.update({name: moved}))

    return move


def say_twice(copy: Copy) -> None:
    path = copy / INDEX
    text = path.read_text()
    line = f'"{EMBED}": "{FIRST}"'
    assert line in text
    path.write_text(text.replace(line, f"{line}, {line}"))


def name_twice(header: dict[str, Any]) -> str:
    entry = json.dumps({EMBED: header[EMBED]})
    return entry[:-1] + ", " + json.dumps(header)[1:]


def overlap(header: dict[str, Any]) -> None:
    gate, up = EXPERT + "gate_proj.weight", EXPERT + "up_proj.weight"
    header[up]["data_offsets"] = header[gate]["data_offsets"]


def cut_off(copy: Copy) -> None:
    path = copy / FIRST
    os.truncate(path, path.stat().st_size // 2)


def lie_of_length(copy: Copy) -> None:
    path = copy / FIRST
    content = path.read_bytes()
    path.write_bytes((2**40).to_bytes(8, "little") + content[8:])


def shorter_length(copy: Copy) -> None:
    path = copy / FIRST
    content = path.read_bytes()
    path.write_bytes((1000).to_bytes(8, "little") + content[8:])


def empty(copy: Copy) -> None:
    for path in copy.folder.iterdir():
        path.unlink()


def reciprocal(copy: Copy) -> None:
    def turn(found: dict[str, torch.Tensor]) -> None:
        for name in list(found):
            if name.endswith("weight_scale_2"):
                found[name] = found[name].reciprocal()

    copy.tensors(FIRST, turn)


def without_input_scales(copy: Copy) -> None:
    def strip(found: dict[str, torch.Tensor]) -> None:
        for name in list(found):
            if name.endswith("input_scale"):
                del found[name]

    copy.tensors(FIRST, strip)


def scales_of_keys_and_values(found: dict[str, torch.Tensor]) -> None:
    for letter in "kv":
        name = f"model.language_model.layers.3.self_attn.{letter}_proj.{letter}_scale"
        found[name] = torch.tensor(1.0)


def one_of_each_unused(found: dict[str, torch.Tensor]) -> None:
    found["model.visual.patch_embed.proj.weight"] = torch.zeros(2, 3)
    found["mtp.fc.weight"] = torch.full((2, 2), torch.nan)


GATE, UP, DOWN = (f"{EXPERT}{name}_proj.weight" for name in ("gate", "up", "down"))
PARTS = ("", "_scale", "_scale_2")

HARMLESS: dict[str, Breakage] = {
    "a stray file of weights": write("stray.safetensors", b"no weights at all"),
    "a scale in another shard": to_other_shard(GATE + "_scale"),
    "no input scales": without_input_scales,
    "scales of keys and values": lambda copy: copy.tensors(SECOND, scales_of_keys_and_values),
    "vision and draft heads": lambda copy: copy.tensors(FIRST, one_of_each_unused),
    "a config of more positions": lambda copy: copy.config(max_position_embeddings=65_536),
    "no config file": lambda copy: copy.without("config.json"),
}

IN_THE_FOLDER: dict[str, Breakage] = {
    "an empty folder": empty,
    "a deleted shard": lambda copy: copy.without(FIRST),
    "a truncated shard": cut_off,
    "an empty shard": write(FIRST, b""),
    "a page that says not found": write(FIRST, b"<html>404: not found</html>"),
    "a shard that is a folder": lambda copy: copy.without(FIRST).mkdir(),
    "a shard that is a pipe": lambda copy: os.mkfifo(copy.without(FIRST)),
    "an index that is a folder": lambda copy: copy.without(INDEX).mkdir(),
    "an index that is no JSON": write(INDEX, b"{"),
    "an index that names a tensor twice": say_twice,
    "an index that names a file that is not there": lambda copy: copy.index(
        lambda rows: rows.update({EMBED: "model-00004-of-00003.safetensors"})
    ),
    "an index that names a tensor that is not there": lambda copy: copy.index(
        lambda rows: rows.update({"lm_head.bias": FIRST})
    ),
    "an index that leads out of the folder": lambda copy: copy.index(
        lambda rows: rows.update({EMBED: f"../{FIRST}"})
    ),
    "a header longer than its file": lie_of_length,
    "a header cut short": shorter_length,
    "a header with a name twice": lambda copy: copy.header(FIRST, name_twice),
    "tensors that overlap": lambda copy: copy.header(FIRST, overlap),
    "a dtype that no format has": lambda copy: copy.header(
        FIRST, lambda header: header[EMBED].update(dtype="F4")
    ),
}

IN_THE_TENSORS: dict[str, Breakage] = {
    "a missing weight": drop(GATE),
    "a missing scale": drop(GATE + "_scale"),
    "a missing global scale": drop(GATE + "_scale_2"),
    "a missing FP8 scale": drop(QKV + "weight_scale"),
    "an FP8 scale for each block": put(QKV + "weight_scale", torch.ones(4, 2)),
    "weights of a wrong dtype": put(EMBED, torch.zeros(4096, 256, dtype=torch.int32)),
    "scales of a wrong dtype": put(GATE + "_scale", torch.zeros(128, 16, dtype=torch.bfloat16)),
    "experts in bf16 among NVFP4": put(GATE, torch.zeros(128, 256, dtype=torch.bfloat16)),
    "attention in bf16 where FP8 is declared": lambda copy: copy.tensors(
        FIRST,
        lambda found: found.update({QKV + "weight": found[QKV + "weight"].to(torch.bfloat16)}),
    ),
    "down in the place of gate": lambda copy: [swap(GATE + end, DOWN + end)(copy) for end in PARTS],
    "a narrower matrix": put(EMBED, torch.zeros(4096, 128, dtype=torch.bfloat16)),
    "a smaller vocabulary": put(EMBED, torch.zeros(4000, 256, dtype=torch.bfloat16)),
    "an expert too many": put(LAYER + "mlp.experts.32.gate_proj.weight", torch.zeros(1)),
    "a bias that the model does not have": put(QKV + "bias", torch.zeros(512)),
    "names of another family": rename(
        (
            f"{LAYER}mlp.experts.{expert}.{ours}_proj.weight",
            f"{LAYER}block_sparse_moe.experts.{expert}.{theirs}.weight",
        )
        for expert in range(32)
        for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    ),
}

IN_THE_VALUES: dict[str, Breakage] = {
    "a global scale of NaN": put(GATE + "_scale_2", torch.tensor(torch.nan)),
    "a global scale of 0": put(GATE + "_scale_2", torch.tensor(0.0)),
    "global scales that are reciprocals": reciprocal,
    "a block scale of NaN": lambda copy: copy.code(GATE + "_scale", 0x7F),
    "a negative block scale": lambda copy: copy.code(UP + "_scale", 0xB8),
    "an infinite weight": lambda copy: copy.number(EMBED, torch.inf),
    "a norm of NaN": lambda copy: copy.number(LAYER + "input_layernorm.weight", torch.nan),
    "an FP8 code of NaN": lambda copy: copy.code(QKV + "weight", 0x7F),
    "an FP8 scale of NaN": put(QKV + "weight_scale", torch.tensor(torch.nan)),
}

IN_THE_OTHER_FILES: dict[str, Breakage] = {
    "a config of another width": lambda copy: copy.config(hidden_size=512),
    "a config of more experts": lambda copy: copy.config(num_experts=64),
    "a config of fewer layers": lambda copy: copy.config(
        num_hidden_layers=4, layer_types=[*["linear_attention"] * 3, "full_attention"]
    ),
    "a config of another vocabulary": lambda copy: copy.config(vocab_size=8192),
    "a config of another rotary base": lambda copy: copy.config(
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    ),
    "a config of more experts a token": lambda copy: copy.config(num_experts_per_tok=8),
    "a config of a family that is not served": lambda copy: copy.json(
        "config.json", lambda content: content.update(model_type="mixtral")
    ),
    "a config that is no JSON": write("config.json", b"hidden_size: 256"),
    "no tokenizer": lambda copy: copy.without("tokenizer.json"),
    "a tokenizer that is none": write("tokenizer.json", b"{}"),
    "a tokenizer of another model": lambda copy: (copy / "tokenizer.json").write_text(
        (copy / "tokenizer.json").read_text().replace("<|im_end|>", "<|end|>")
    ),
    "no template": lambda copy: copy.without("chat_template.jinja"),
    "a template that does not compile": write("chat_template.jinja", b"{% for %}"),
    "a template that fails on a plain chat": write(
        "chat_template.jinja", b"{{ messages[7].role }}"
    ),
    "no stop ids": lambda copy: copy.json(
        "generation_config.json", lambda content: content.pop("eos_token_id")
    ),
    "stop ids of another model": lambda copy: copy.json(
        "generation_config.json", lambda content: content.update(eos_token_id=[248046, 248044])
    ),
    "no generation config": lambda copy: copy.without("generation_config.json"),
}
