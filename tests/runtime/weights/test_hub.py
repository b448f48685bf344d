"""A repository of the hub: its commit, its files, its headers, what is kept of them, and each refusal's sentence."""

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hub_server import COMMIT, ENDLESS_BYTES, HubServer, folder_files, serving

from firmtoken.runtime.weights.checkpoint import INDEX, open_checkpoint
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import write_note
from firmtoken.runtime.weights.hub import Hub, Repository, look_up
from firmtoken.runtime.weights.hub_cache import snapshot, storage
from firmtoken.runtime.weights.hub_download import download
from firmtoken.runtime.weights.hub_errors import HubError, Unreachable
from firmtoken.runtime.weights.hub_files import described, shards, whole
from firmtoken.runtime.weights.hub_headers import Notes, find, remote_checkpoint
from firmtoken.runtime.weights.model_config import read_model
from firmtoken.schema.references import shipped_folder

CONFIGS = Path(__file__).resolve().parents[2] / "compiler" / "configs"
TINY = shipped_folder() / "weights" / "tiny-moe"
NAME = "tiny/moe"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
STRAYS = (
    "README.md",
    "pytorch_model.bin",
    "stray.safetensors",
    "onnx/model.onnx",
    "original/a.pth",
)


@pytest.fixture(scope="module")
def tiny_files() -> dict[str, bytes]:
    return folder_files(TINY) | dict.fromkeys(STRAYS, b"not wanted")


@pytest.fixture
def server(tiny_files: dict[str, bytes]) -> Iterator[HubServer]:
    with serving(tiny_files) as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    """Seconds that were waited between tries."""
    return []


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, waits: list[float]) -> Hub:
    return Hub(endpoint=server.url, cache=tmp_path / "hub", token=None, wait=waits.append)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(folder=tmp_path / "notes")


def small_files(hub: Hub, notes: Notes, revision: str = "main") -> Repository:
    """Found, with its small files on this disk."""
    repository = find(hub, notes, NAME, revision).repository
    download(hub, repository, described(repository), lambda _arrived: None)
    return repository


def test_a_revision_is_a_commit_and_files_with_sizes_and_digests(
    hub: Hub, tiny_files: dict[str, bytes]
) -> None:
    repository = look_up(hub, NAME, "main")
    assert (repository.commit, repository.revision) == (COMMIT, "main")
    assert repository.files["config.json"].bytes == len(tiny_files["config.json"])
    assert len(repository.files["config.json"].digest) == 40
    assert len(repository.files[SHARDS[0]].digest) == 64
    assert not any("/" in name for name in repository.files)


def test_only_what_serving_reads_makes_the_checkpoint(hub: Hub, notes: Notes) -> None:
    repository = small_files(hub, notes)
    wanted = {
        file.name for file in whole(repository, shards(repository, snapshot(hub, repository)))
    }
    assert wanted == {
        "config.json",
        "hf_quant_config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        INDEX,
        *SHARDS,
    }


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.iterdir()))
def test_every_public_configuration_is_read_through_the_hub(
    name: str, tmp_path: Path, notes: Notes
) -> None:
    with serving(folder_files(CONFIGS / name)) as server:
        hub = Hub(endpoint=server.url, cache=tmp_path / "hub", token=None)
        folder = snapshot(hub, small_files(hub, notes))
    assert model_or_refusal(folder) == model_or_refusal(CONFIGS / name)


def model_or_refusal(folder: Path) -> object:
    try:
        return read_model(folder, name="x", source={"hub": NAME, "revision": COMMIT})
    except LoadError as error:
        return str(error)


def test_headers_by_ranges_are_those_of_the_files(
    hub: Hub, notes: Notes, server: HubServer
) -> None:
    repository = small_files(hub, notes)
    weights = shards(repository, snapshot(hub, repository))
    remote, local = remote_checkpoint(hub, notes, repository, weights), open_checkpoint(TINY)
    assert (remote.tensors, remote.prefix) == (local.tensors, local.prefix)
    for shard in SHARDS:
        length = int.from_bytes(server.files[shard][:8], "little")
        assert server.bytes_sent(shard) == 8 + length


def test_a_known_commit_needs_no_hub_any_more(hub: Hub, notes: Notes, server: HubServer) -> None:
    repository = small_files(hub, notes)
    weights = shards(repository, snapshot(hub, repository))
    first = remote_checkpoint(hub, notes, repository, weights)
    asked = len(server.paths())
    found = find(hub, notes, NAME, COMMIT)
    again = remote_checkpoint(hub, notes, found.repository, weights)
    assert len(server.paths()) == asked
    assert found.stale is None
    assert (found.repository.files, again.tensors) == (repository.files, first.tensors)


def test_a_branch_is_asked_for_each_time_and_remembered_for_a_hub_that_is_away(
    hub: Hub, notes: Notes, server: HubServer
) -> None:
    small_files(hub, notes)
    server.commit = COMMIT[::-1]
    assert find(hub, notes, NAME, "main").repository.commit == COMMIT[::-1]
    server.close()
    found = find(hub, notes, NAME, "main")
    assert found.repository.commit == COMMIT[::-1]
    assert found.stale is not None and "cannot be reached" in str(found.stale)


def test_what_another_program_has_downloaded_is_found_without_a_hub(
    hub: Hub, notes: Notes, server: HubServer
) -> None:
    repository = small_files(hub, notes)
    files = whole(repository, shards(repository, snapshot(hub, repository)))
    download(hub, repository, files, lambda _arrived: None)
    server.close()
    nothing_noted = Notes(folder=notes.folder / "other")
    found = find(hub, nothing_noted, NAME, "main")
    assert found.repository.files == {file.name: file for file in files}
    (snapshot(hub, repository) / SHARDS[1]).unlink()
    with pytest.raises(Unreachable):
        find(hub, nothing_noted, NAME, "main")


@pytest.mark.parametrize(
    ("revision", "name", "gated", "sentence", "hint"),
    [
        ("main", "tiny/none", False, "has no repository `tiny/none`, or a private one", "HF_TOKEN"),
        ("v2", NAME, False, "`tiny/moe` has no revision `v2`", "left out, it is `main`"),
        ("main", NAME, True, "`tiny/moe` is gated", "accept its terms at http"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_with_a_remedy(
    hub: Hub,
    notes: Notes,
    server: HubServer,
    waits: list[float],
    revision: str,
    name: str,
    gated: bool,
    sentence: str,
    hint: str,
) -> None:
    server.faults.gated = gated
    with pytest.raises(HubError) as caught:
        repository = find(hub, notes, name, revision).repository
        download(hub, repository, described(repository), lambda _arrived: None)
    assert sentence in str(caught.value)
    assert hint in caught.value.hint
    assert not isinstance(caught.value, Unreachable)
    assert waits == []


def test_a_token_opens_a_gate_and_is_not_sent_to_another_host(
    server: HubServer, notes: Notes, tmp_path: Path
) -> None:
    server.faults.gated = True
    hub = Hub(endpoint=server.url, cache=tmp_path / "hub", token="secret")
    repository = small_files(hub, notes)
    assert {sent.token for sent in server.of_file("config.json")} == {"Bearer secret"}
    with serving(server.files) as content:
        server.content_url = content.url
        remote_checkpoint(hub, notes, repository, shards(repository, snapshot(hub, repository)))
        assert {sent.token for sent in content.sent} == {None}


@pytest.mark.parametrize(
    ("statuses", "retry_after", "waited"),
    [([503, 502], None, [1.0, 2.0]), ([429], "7", [7.0]), ([429], "soon", [1.0])],
)
def test_a_busy_hub_is_asked_again(
    hub: Hub,
    server: HubServer,
    waits: list[float],
    statuses: list[int],
    retry_after: str | None,
    waited: list[float],
) -> None:
    server.faults.statuses, server.faults.retry_after = list(statuses), retry_after
    assert look_up(hub, NAME, "main").commit == COMMIT
    assert waits == waited


def test_a_hub_that_only_fails_is_given_up(hub: Hub, server: HubServer, waits: list[float]) -> None:
    server.faults.statuses = [500] * 9
    with pytest.raises(Unreachable, match=r"answers 500 \(as ordered\) for `tiny/moe`"):
        look_up(hub, NAME, "main")
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_a_network_that_is_not_there_is_said_at_once(
    hub: Hub, server: HubServer, waits: list[float]
) -> None:
    server.close()
    with pytest.raises(Unreachable, match="cannot be reached"):
        look_up(hub, NAME, "main")
    assert waits == []


@pytest.mark.parametrize("endpoint", ["nowhere", "http://[", "ftp://example.org"])
def test_an_address_that_is_none_is_said_at_once(
    tmp_path: Path, waits: list[float], endpoint: str
) -> None:
    hub = Hub(endpoint=endpoint, cache=tmp_path, token=None, wait=waits.append)
    with pytest.raises(HubError) as caught:
        look_up(hub, NAME, "main")
    assert str(caught.value).startswith(f"{endpoint} cannot be reached: ")
    assert waits == []


def test_what_a_server_says_obeys_no_screen(hub: Hub, server: HubServer) -> None:
    server.faults.statuses, server.faults.word = [403], "\x1b[2Jgone"
    with pytest.raises(HubError, match=r"answers 403 \(\\x1b\[2Jgone\)") as caught:
        look_up(hub, NAME, "main")
    assert str(caught.value).isprintable()


def test_a_cache_that_cannot_be_written_serves_what_it_has(
    hub: Hub, notes: Notes, server: HubServer
) -> None:
    repository = small_files(hub, notes)
    notes.folder.rename(notes.folder.with_name("elsewhere"))
    notes.folder.write_text("no folder")
    refs = storage(hub, NAME) / "refs"
    (refs / "main").unlink()
    refs.rmdir()
    refs.write_text("no folder")
    assert find(hub, notes, NAME, "main").repository.files == repository.files


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sha": "../../x"}, "what a hub does not: the commit `../../x`"),
        ({"sha": None}, "Expected `str`, got `null`"),
        ({"siblings": [{"rfilename": "a", "size": -5}]}, "Expected `int` >= 0"),
        ({"siblings": [{"rfilename": "a"}]}, "`a` without a size or a digest"),
        (
            {"siblings": [{"rfilename": "a", "size": 1, "blobId": "../b"}]},
            "`a` without a size or a digest",
        ),
        (None, "JSON is malformed"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    hub: Hub, server: HubServer, change: dict[str, object] | None, sentence: str
) -> None:
    server.listing = b"<html>" if change is None else change
    with pytest.raises(HubError, match=sentence):
        look_up(hub, NAME, "main")


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ("config.json", "expected `config.json`, found no such file"),
        (SHARDS[1], f"expected `{SHARDS[1]}`, which `{INDEX}` names, found no such file"),
        (
            INDEX,
            "expected `model.safetensors.index.json` or `model.safetensors`, found no such file",
        ),
    ],
)
def test_a_repository_without_a_whole_checkpoint_is_refused(
    hub: Hub, notes: Notes, server: HubServer, lacks: str, expected: str
) -> None:
    del server.files[lacks]
    with pytest.raises(LoadError) as caught:
        repository = small_files(hub, notes)
        shards(repository, snapshot(hub, repository))
    assert str(caught.value) == f"`tiny/moe at {COMMIT}`: {expected}"


@pytest.mark.parametrize(
    "content",
    [lambda _whole: b"", lambda whole: whole[:7], lambda whole: b"\xff" * 8 + whole[8:]],
    ids=["empty", "short", "long"],
)
def test_a_header_that_is_none_is_refused_with_its_file(
    hub: Hub, notes: Notes, server: HubServer, content: Callable[[bytes], bytes]
) -> None:
    server.files[SHARDS[2]] = content(server.files[SHARDS[2]])
    repository = small_files(hub, notes)
    with pytest.raises(LoadError, match=f"`{SHARDS[2]}`: expected a safetensors header"):
        remote_checkpoint(hub, notes, repository, shards(repository, snapshot(hub, repository)))


def test_a_hub_without_ranges_is_refused_instead_of_downloading_weights(
    hub: Hub, notes: Notes, server: HubServer
) -> None:
    server.faults.ignores_ranges = True
    repository = small_files(hub, notes)
    with pytest.raises(HubError, match=r"sends no part of `model-0000\d-of-00003\.safetensors`"):
        remote_checkpoint(hub, notes, repository, shards(repository, snapshot(hub, repository)))


@pytest.mark.parametrize("note", ["files.json", f"{SHARDS[1]}.header.json"])
def test_a_note_that_was_spoiled_is_asked_for_again(hub: Hub, notes: Notes, note: str) -> None:
    repository = small_files(hub, notes)
    weights = shards(repository, snapshot(hub, repository))
    first = remote_checkpoint(hub, notes, repository, weights)
    place = notes.of(hub, NAME, COMMIT) / note
    text = place.read_bytes()
    place.write_bytes(text[:-9])
    again = find(hub, notes, NAME, COMMIT).repository
    assert remote_checkpoint(hub, notes, again, weights).tensors == first.tensors
    assert place.read_bytes() == text


def test_a_single_file_without_an_index_is_a_checkpoint(
    hub: Hub, notes: Notes, server: HubServer
) -> None:
    for name in (INDEX, *SHARDS[1:]):
        del server.files[name]
    server.files["model.safetensors"] = server.files.pop(SHARDS[0])
    repository = small_files(hub, notes)
    weights = shards(repository, snapshot(hub, repository))
    header = server.files["model.safetensors"]
    names = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")]).keys()
    tensors = remote_checkpoint(hub, notes, repository, weights).tensors
    assert set(tensors) == names - {"__metadata__"}


@pytest.mark.parametrize("file", ["", "config.json", SHARDS[1]])
def test_an_answer_without_an_end_is_left(
    hub: Hub, notes: Notes, server: HubServer, file: str
) -> None:
    server.faults.endless = {file}
    with pytest.raises(HubError):
        repository = small_files(hub, notes)
        remote_checkpoint(hub, notes, repository, shards(repository, snapshot(hub, repository)))
    server.close()
    assert max(sent.count for sent in server.sent) < ENDLESS_BYTES


def test_a_note_that_has_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    write_note(tmp_path / "note", b"text")
    assert not list(tmp_path.iterdir())
