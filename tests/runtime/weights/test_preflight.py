"""A checkpoint that is not what the plan wants is refused by a sentence, before any data is read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.preflight import preflight

SHARD = "model-00001-of-00002.safetensors"
Q_PROJ = "model.language_model.layers.1.self_attn.q_proj."


@pytest.fixture
def refusal(written: Any, plan_of: Callable[..., Any]) -> Callable[..., LoadError]:
    """Saves the checkpoint as the test has changed it and returns the fault that preflight finds."""

    def find(**plan: Any) -> LoadError:
        with pytest.raises(LoadError) as caught:
            preflight(plan_of(**plan), written.folder)
        return caught.value

    return find


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The same file with a changed header."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def test_a_whole_checkpoint_is_accepted_stray_files_and_unused_tensors_ignored(
    written: Any, plan_of: Callable[..., Any]
) -> None:
    inventory = preflight(plan_of(), written.folder)
    assert len(inventory.experts) == 9
    assert {item.parts[0].format for item in inventory.dense} == {"plain", "fp8", "nvfp4"}


def test_a_single_file_without_an_index_is_accepted_with_the_plain_prefix(
    written: Any, plan_of: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "single"
    folder.mkdir()
    renamed = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in written.tensors.items()
    }
    save_file(renamed, folder / "model.safetensors")
    assert preflight(plan_of(), folder).checkpoint.prefix == "model."


def test_preflight_needs_no_torch() -> None:
    code = "import sys, firmtoken.runtime.weights.preflight as p; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_folder(plan_of: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        preflight(plan_of(), tmp_path / "nowhere")
    assert str(caught.value) == (
        f"`{tmp_path}/nowhere`: expected a checkpoint folder, found no such folder"
    )


def test_an_empty_folder(plan_of: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        preflight(plan_of(), tmp_path)
    assert str(caught.value) == (
        f"`{tmp_path}`: expected `model.safetensors.index.json` or `model.safetensors`, found neither"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "something else"),
        ('{"weight_map": {"a": "../b"}}', "`../b`"),
    ],
)
def test_a_broken_index(
    written: Any, refusal: Callable[..., LoadError], text: str, found: str
) -> None:
    (written.folder / "model.safetensors.index.json").write_text(text)
    assert str(refusal()) == (
        "`model.safetensors.index.json`: expected a JSON object with `weight_map`, "
        f"tensor names to file names of this folder, found {found}"
    )


def test_a_missing_shard(written: Any, refusal: Callable[..., LoadError]) -> None:
    (written.folder / SHARD).unlink()
    assert str(refusal()) == (
        f"`{SHARD}`: expected a readable file, found No such file or directory"
    )


def test_a_truncated_shard(written: Any, refusal: Callable[..., LoadError]) -> None:
    path = written.folder / SHARD
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    data = len(content) - 8 - int.from_bytes(content[:8], "little")
    fault = refusal()
    assert str(fault) == (
        f"`{SHARD}`: expected {data} bytes of data after the header, found {data - 100}"
    )
    assert fault.hint == "the file is damaged; copy or download it again"


@pytest.mark.parametrize("content", [b"", b"\x10\x00\x00", b"<html>no such file</html>"])
def test_a_file_that_is_not_safetensors(
    written: Any, refusal: Callable[..., LoadError], content: bytes
) -> None:
    (written.folder / SHARD).write_bytes(content)
    assert str(refusal()) == (
        f"`{SHARD}`: expected a safetensors header, "
        f"found {len(content)} bytes that do not begin with one"
    )


def test_a_header_that_is_not_json(written: Any, refusal: Callable[..., LoadError]) -> None:
    (written.folder / SHARD).write_bytes((4).to_bytes(8, "little") + b"nope")
    assert str(refusal()).startswith(f"`{SHARD}`: expected a JSON header, found text that is not")


def test_offsets_that_do_not_fit_the_shape(written: Any, refusal: Callable[..., LoadError]) -> None:
    def stretch(header: dict[str, Any]) -> None:
        header["lm_head.input_scale"]["shape"] = [2]

    rewrite_header(written.folder / SHARD, stretch)
    fault = refusal()
    assert fault.tensor == "lm_head.input_scale"
    assert fault.expected == "8 bytes for F32 [2]"


def test_an_entry_of_an_unknown_dtype(written: Any, refusal: Callable[..., LoadError]) -> None:
    def rename(header: dict[str, Any]) -> None:
        header["lm_head.input_scale"]["dtype"] = "F4"

    rewrite_header(written.folder / SHARD, rename)
    assert refusal().expected == "a known dtype, a shape and two offsets"


def test_a_tensor_that_the_index_names_and_no_file_has(
    written: Any, refusal: Callable[..., LoadError]
) -> None:
    def drop(index: dict[str, Any]) -> None:
        index["weight_map"]["lm_head.extra"] = SHARD

    path = written.folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    drop(index)
    path.write_text(json.dumps(index))
    assert str(refusal()) == (
        f"`lm_head.extra` in `{SHARD}`: expected the tensor that the index places there, "
        "found a header without it"
    )


@pytest.mark.report(56, 66)
def test_missing_tensors_are_counted(written: Any, refusal: Callable[..., LoadError]) -> None:
    for expert in range(2):
        del written.tensors[f"model.language_model.layers.0.mlp.experts.{expert}.up_proj.weight"]
    written.save()
    name = "model.language_model.layers.0.mlp.experts.0.up_proj.weight"
    folder = written.folder.name
    assert str(refusal()) == (
        f"`{name}` in `{folder}`: expected this tensor, found none of this name (and 1 more)"
    )


@pytest.mark.report(56)
def test_unknown_tensors_are_refused(written: Any, refusal: Callable[..., LoadError]) -> None:
    written.tensors["model.language_model.layers.0.mlp.experts.3.up_proj.weight"] = torch.zeros(1)
    written.tensors["model.language_model.layers.0.linear_attn.gain"] = torch.zeros(1)
    written.save()
    fault = refusal()
    assert fault.tensor == "model.language_model.layers.0.linear_attn.gain"
    assert str(fault).endswith(
        "expected only tensors that the model uses, found one that it does not know (and 1 more)"
    )


def test_a_wrong_shape(written: Any, refusal: Callable[..., LoadError]) -> None:
    name = "model.language_model.embed_tokens.weight"
    written.tensors[name] = torch.zeros(47, 32, dtype=torch.bfloat16)
    written.save()
    fault = refusal()
    assert str(fault) == f"`{name}` in `{fault.file}`: expected shape [48, 32], found [47, 32]"


def test_a_wrong_number_of_stacked_rows(written: Any, refusal: Callable[..., LoadError]) -> None:
    name = "model.language_model.layers.0.linear_attn.in_proj_b.weight"
    written.tensors[name] = torch.zeros(5, 32, dtype=torch.bfloat16)
    written.save()
    fault = refusal()
    assert str(fault) == f"`{name}` in `{fault.file}`: expected shape [4, 32], found [5, 32]"


def test_stacked_tensors_in_each_others_place(
    written: Any, refusal: Callable[..., LoadError]
) -> None:
    large, small = (
        f"model.language_model.layers.0.linear_attn.in_proj_{part}." for part in ("qkv", "b")
    )
    for ending in ("weight", "weight_scale"):
        stored = written.tensors.pop(large + ending)
        written.tensors[small + ending] = stored
    written.tensors[large + "weight"] = torch.zeros(4, 32, dtype=torch.bfloat16)
    written.save()
    fault = refusal()
    assert (fault.tensor, fault.found) == (large + "weight", "[4, 32]")


def test_an_expert_of_another_width(written: Any, refusal: Callable[..., LoadError]) -> None:
    name = "model.language_model.layers.2.mlp.experts.1.gate_proj.weight"
    written.tensors[name] = torch.zeros(16, 8, dtype=torch.uint8)
    written.tensors[name + "_scale"] = torch.zeros(16, 1).to(torch.float8_e4m3fn)
    written.save()
    fault = refusal()
    assert str(fault) == f"`{name}` in `{fault.file}`: expected shape [16, 32], found [16, 16]"


@pytest.mark.report(55)
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("weight_scale", "`weight_scale` F8_E4M3 [16, 2] beside U8 [16, 16]"),
        ("weight_scale_2", "one F32 `weight_scale_2` beside U8"),
    ],
)
def test_nvfp4_without_one_of_its_scales(
    written: Any, refusal: Callable[..., LoadError], ending: str, expected: str
) -> None:
    stem = "model.language_model.layers.2.mlp.experts.1.gate_proj."
    del written.tensors[stem + ending]
    written.save()
    fault = refusal()
    assert (fault.tensor, fault.expected, fault.found) == (stem + "weight", expected, "none")


def test_fp8_with_block_scales(written: Any, refusal: Callable[..., LoadError]) -> None:
    del written.tensors[Q_PROJ + "weight_scale"]
    written.tensors[Q_PROJ + "weight_scale_inv"] = torch.ones(1, 1)
    written.save()
    fault = refusal()
    assert fault.expected == "one F32 `weight_scale` beside F8_E4M3"
    assert fault.hint == (
        "this is another quantisation layout; use an export of ModelOpt, or NVFP4 of compressed-tensors"
    )


def test_a_dtype_that_holds_no_weights(written: Any, refusal: Callable[..., LoadError]) -> None:
    name = "model.language_model.embed_tokens.weight"
    written.tensors[name] = torch.zeros(48, 32, dtype=torch.int32)
    written.save()
    assert refusal().expected == "BF16, F16, F32, F8_E4M3 or U8"


@pytest.mark.report(55)
def test_nvfp4_slots_refuse_experts_that_are_stored_otherwise(
    written: Any, refusal: Callable[..., LoadError], plan_of: Callable[..., Any]
) -> None:
    stem = "model.language_model.layers.0.mlp.experts.0.gate_proj."
    for ending in ("weight_scale", "weight_scale_2", "input_scale"):
        del written.tensors[stem + ending]
    written.tensors[stem + "weight"] = torch.zeros(16, 32, dtype=torch.bfloat16)
    written.save()
    assert refusal(format_name="nvfp4").found == "BF16"
    preflight(plan_of(format_name="fp32"), written.folder)


def test_tensors_that_share_bytes(written: Any, refusal: Callable[..., LoadError]) -> None:
    def overlap(header: dict[str, Any]) -> None:
        names = [name for name, entry in header.items() if entry.get("shape") == [16, 16]]
        header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]

    rewrite_header(written.folder / SHARD, overlap)
    fault = refusal()
    assert fault.file == SHARD and "where the tensor before it ends" in fault.expected


def test_offsets_that_are_all_shifted(written: Any, refusal: Callable[..., LoadError]) -> None:
    def shift(header: dict[str, Any]) -> None:
        for name, entry in header.items():
            if name != "__metadata__":
                entry["data_offsets"] = [offset + 1 for offset in entry["data_offsets"]]

    path = written.folder / SHARD
    rewrite_header(path, shift)
    path.write_bytes(path.read_bytes() + b"\0")
    fault = refusal()
    assert (fault.expected, fault.found) == (
        "data from offset 0, where the tensor before it ends",
        "offset 1",
    )


@pytest.mark.parametrize("shape", [[10**4000, 0], [2**47] * 1000, [True]])
def test_a_shape_that_no_file_holds(
    written: Any, refusal: Callable[..., LoadError], shape: list[int]
) -> None:
    def inflate(header: dict[str, Any]) -> None:
        header["lm_head.input_scale"]["shape"] = shape

    rewrite_header(written.folder / SHARD, inflate)
    assert refusal().expected == "a known dtype, a shape and two offsets"


def test_a_header_of_brackets(written: Any, refusal: Callable[..., LoadError]) -> None:
    (written.folder / SHARD).write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000)
    assert str(refusal()) == (
        f"`{SHARD}`: expected a JSON header, "
        "found text that is not JSON: brackets nested too deeply"
    )


def test_an_index_of_brackets(written: Any, refusal: Callable[..., LoadError]) -> None:
    (written.folder / "model.safetensors.index.json").write_text("[" * 200_000)
    assert refusal().found == "brackets nested too deeply"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("a\0b", r"`a\x00b`"),
        ("a\ud800", r"`a\ud800`"),
        ("a\udc80", r"`a\udc80`"),
        ("..", "`..`"),
        ("", "``"),
        ("/etc/passwd", "`/etc/passwd`"),
        ("a\\b", r"`a\b`"),
        (7, "`7`"),
    ],
)
def test_an_index_that_names_what_is_no_file_of_the_folder(
    written: Any, refusal: Callable[..., LoadError], file: object, shown: str
) -> None:
    index = {"weight_map": {"lm_head.weight": file}}
    (written.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert str(refusal()).endswith(f"of this folder, found {shown}")


def test_a_tensor_name_that_cannot_be_encoded_is_shown(
    written: Any, refusal: Callable[..., LoadError]
) -> None:
    index = {"weight_map": {"a\ud800": SHARD}}
    (written.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert str(refusal()).startswith(r"`a\ud800` in ")


@pytest.mark.parametrize("name", [SHARD, "model.safetensors.index.json"])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (os.mkfifo, "a FIFO"),
        (os.mkdir, "a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    written: Any,
    refusal: Callable[..., LoadError],
    name: str,
    make: Callable[[Path], None],
    found: str,
) -> None:
    (written.folder / name).unlink()
    make(written.folder / name)
    fault = refusal()
    assert str(fault) == f"`{name}`: expected a regular file, found {found}"
    assert fault.hint


def test_a_single_file_that_is_a_fifo(plan_of: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match="expected a regular file, found a FIFO"):
        preflight(plan_of(), tmp_path)
