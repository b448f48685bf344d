"""What `ft synth` writes is a whole checkpoint, and the same weights that are made where there are no files."""

import errno
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runtime.synthetic_models import FAMILIES, SHIPPED, overrides, small_model

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_from_json, plan_to_json
from firmtoken.runtime.dialects.registry import DIALECTS
from firmtoken.runtime.engine.loading import inventory_of, load_weights
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.server.tokenizer import LoadedTokenizer, load_tokenizer
from firmtoken.runtime.weights.checkpoint import open_checkpoint
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import read_header
from firmtoken.runtime.weights.model_config import read_model
from firmtoken.runtime.weights.planned_model import planned_model
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.runtime.weights.synthetic import SyntheticWeights, num_bytes
from firmtoken.runtime.weights.synthetic_files import plan_shards, small_files, write_checkpoint
from firmtoken.runtime.weights.synthetic_text import PUBLISHED, text_files
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import Model

SEED = 7
SYNTHETIC = f"{{synthetic: {{seed: {SEED}}}}}"
SHARD_BYTES = 200_000
"""So that small models have several shards."""
TEXT = "Hello, wörld!  <|im_end|>\n\tfn main() {} 你好 aabc aabd"


def write(model: Model, folder: Path) -> Path:
    weights = SyntheticWeights(model, SEED)
    shards = plan_shards(weights.tensors.values(), SHARD_BYTES)
    write_checkpoint(folder, weights, shards, small_files(model, weights, shards), lambda _: None)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def written(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(small_model(family), tmp_path_factory.mktemp(family) / "checkpoint")


def plan_of(family: str, source: str, *more: str) -> Plan:
    loaded = load_profile("tiny-cpu", [*overrides(family, source), "serving.context=1k", *more])
    return plan_from_json(plan_to_json(compile_profile(loaded.profile, CARDS)))


def filled(plan: Plan) -> Iterator[torch.Tensor]:
    """The device's bytes and the host's banks, once everything is loaded."""
    arena = Arena(plan.spaces, {})
    arena.device.zero_()
    interpreter = Interpreter(plan, arena)
    load_weights(plan, interpreter, inventory_of(plan), lambda *_: None)
    yield arena.device
    for space in plan.spaces:
        if space.name == "bank":
            yield arena.bytes_of("bank", 0, space.bytes)
    interpreter.close()


@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_rows_are_the_same_with_files_and_without(
    family: str, written: Path, placement: str
) -> None:
    more = ["experts.slots=10"] if placement == "offload" else ["hardware.cpu.memory=400MiB"]
    plans = [plan_of(family, source, *more) for source in (f"{{path: {written}}}", SYNTHETIC)]
    assert {plan.experts.placement for plan in plans} == {placement}
    read, made = map(filled, plans)
    for one, other in zip(read, made, strict=True):
        assert one.count_nonzero() > 0
        assert torch.equal(one, other)


def test_the_folder_has_all_tensors_of_the_layout_and_no_other(family: str, written: Path) -> None:
    weights = SyntheticWeights(small_model(family), SEED)
    headers = open_checkpoint(written).tensors
    assert {(one.name, one.dtype, one.shape) for one in headers.values()} == {
        (one.name, one.dtype, one.shape) for one in weights.tensors.values()
    }
    assert len({one.file for one in headers.values()}) > 2
    index = json.loads((written / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(map(num_bytes, weights.tensors.values()))


def test_tensors_lie_in_the_order_of_safetensors_own_writer(written: Path, tmp_path: Path) -> None:
    for file in written.glob("*.safetensors"):
        save_file(load_file(file), tmp_path / file.name)
        ours, theirs = read_header(file), read_header(tmp_path / file.name)
        assert sorted(ours, key=lambda name: ours[name].offset) == sorted(
            theirs, key=lambda name: theirs[name].offset
        )


@pytest.mark.parametrize("profile", SHIPPED)
def test_the_configs_say_what_the_profile_says(profile: str, tmp_path: Path) -> None:
    model = load_profile(profile).profile.model
    weights = SyntheticWeights(model, 0)
    for name, text in small_files(model, weights, ()).items():
        (tmp_path / name).write_text(text)
    source = {"path": str(tmp_path)}
    found = Model.model_validate(read_model(tmp_path, name=model.name, source=source))
    assert (found.family, found.geometry, found.quantization, found.dialect) == (
        model.family,
        model.geometry,
        model.quantization,
        model.dialect,
    )


@pytest.mark.parametrize(
    "profile", [SHIPPED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED[1:3])]
)
def test_a_real_geometry_passes_preflight(profile: str, tmp_path: Path) -> None:
    """Shards of the true length, without their data: headers and configs are all that it reads."""
    loaded = load_profile(profile, [f"model.source={{path: {tmp_path}}}"])
    weights = SyntheticWeights(loaded.profile.model, SEED)
    shards = plan_shards(weights.tensors.values())
    for name, text in small_files(loaded.profile.model, weights, shards).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for shard in shards:
        with (tmp_path / shard.name).open("wb") as file:
            file.write(shard.header)
            file.truncate(file.tell() + sum(map(num_bytes, shard.tensors)))
    plan = compile_profile(loaded.profile, CARDS)
    inventory = preflight(plan, tmp_path)
    assert len(inventory.experts) == plan.experts.total


@pytest.mark.parametrize("profile", SHIPPED)
def test_a_plan_knows_the_model_that_it_was_made_of(profile: str) -> None:
    loaded = load_profile(profile, [f"model.source={SYNTHETIC}"])
    model = loaded.profile.model
    planned = planned_model(compile_profile(loaded.profile, CARDS).model)
    assert planned.model_dump(exclude={"perplexity"}) == model.model_dump(exclude={"perplexity"})


def tokenizer_of(model: Model, folder: Path) -> LoadedTokenizer:
    for name, text in text_files(model).items():
        (folder / name).write_text(text, encoding="utf-8")
    return load_tokenizer(folder, now=datetime.now)


def test_the_control_tokens_of_every_dialect_are_known() -> None:
    assert set(PUBLISHED) == {dialect.name for dialect in DIALECTS}


@pytest.mark.parametrize("profile", SHIPPED[:3])
def test_control_tokens_have_their_published_ids(profile: str, tmp_path: Path) -> None:
    model = load_profile(profile).profile.model
    tokenizer = tokenizer_of(model, tmp_path).tokenizer
    published = PUBLISHED[model.dialect]
    for token, content in {**published.special, **published.visible}.items():
        assert tokenizer.encode(content) == [token]
        assert tokenizer.is_special(token) == (token in published.special)
    assert tokenizer.vocab_size <= model.geometry.vocab_size


def test_any_text_comes_back_and_a_made_up_word_is_one_token(family: str, tmp_path: Path) -> None:
    loaded = tokenizer_of(small_model(family), tmp_path)
    token_ids = loaded.tokenizer.encode(TEXT)
    assert loaded.tokenizer.decode(token_ids, skip_special_tokens=False) == TEXT
    words = "".join(
        loaded.tokenizer.decode([token], skip_special_tokens=False) for token in range(256, 400)
    )
    assert loaded.tokenizer.encode(words) == list(range(256, 400))
    assert loaded.template is not None
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    prompt = loaded.template.render(turns, add_generation_prompt=True, variables={})
    assert "Hi" in prompt and "Hello" in prompt


def test_a_vocabulary_without_room_is_refused() -> None:
    model = small_model("qwen3_moe")
    least = 256 + 151668 - 151643 + 1
    for rows in (least, least - 1):
        geometry = model.geometry.model_copy(update={"vocab_size": rows})
        small = model.model_copy(update={"geometry": geometry})
        if rows == least:
            text_files(small)
            continue
        with pytest.raises(
            LoadError, match=f"expected at least {least} rows of vocabulary, found {rows}"
        ):
            text_files(small)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        nonlocal written
        written += 1
        if written > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space left"):
        write(small_model("qwen3_moe"), tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


def test_a_write_that_takes_less_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pwrite = small_model("qwen3_moe"), os.pwrite
    whole = write(model, tmp_path / "whole")
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:1000], offset)
    )
    halting = write(model, tmp_path / "halting")
    for file in whole.iterdir():
        assert file.read_bytes() == (halting / file.name).read_bytes()
