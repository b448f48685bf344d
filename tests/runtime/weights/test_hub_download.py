"""A download survives what happens to downloads: no byte twice, no byte unchecked, nothing lost that had arrived."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from tests.hub_server import COMMIT, HubServer, serving

from firmtoken.runtime.weights import hub as hub_module
from firmtoken.runtime.weights.hub import Hub, HubFile, Repository, look_up
from firmtoken.runtime.weights.hub_cache import blob, incomplete, snapshot, storage
from firmtoken.runtime.weights.hub_download import download, free_bytes, to_download
from firmtoken.runtime.weights.hub_errors import HubError, Unreachable

NAME = "tiny/moe"
ONE, TWO, SMALL = "one.safetensors", "two.safetensors", "config.json"
FILES = {ONE: bytes(range(256)) * 4096, TWO: b"two" * 300_000, SMALL: b'{"small": true}'}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serving(FILES) as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    """Seconds that were waited between tries."""
    return []


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, waits: list[float]) -> Hub:
    return Hub(endpoint=server.url, cache=tmp_path / "hub", token=None, wait=waits.append)


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return look_up(hub, NAME, "main")


def all_of(repository: Repository) -> tuple[HubFile, ...]:
    return tuple(repository.files.values())


def fetch(hub: Hub, repository: Repository) -> list[int]:
    """Everything; the reports of progress."""
    seen: list[int] = []
    download(hub, repository, all_of(repository), seen.append)
    return seen


def require_all(hub: Hub, repository: Repository) -> None:
    folder = snapshot(hub, repository)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert list((storage(hub, NAME) / "blobs").glob("*.incomplete")) == []


def test_all_bytes_arrive_once_and_are_told(
    hub: Hub, repository: Repository, server: HubServer
) -> None:
    total = sum(map(len, FILES.values()))
    assert to_download(hub, repository, all_of(repository)) == total
    seen = fetch(hub, repository)
    require_all(hub, repository)
    assert seen == sorted(seen) and seen[-1] == total
    assert to_download(hub, repository, all_of(repository)) == 0
    fetch(hub, repository)
    assert {name: server.bytes_sent(name) for name in FILES} == {
        name: len(content) for name, content in FILES.items()
    }


def test_the_librarys_own_functions_find_the_files(hub: Hub, repository: Repository) -> None:
    fetch(hub, repository)
    found = snapshot_download(NAME, revision=COMMIT, cache_dir=hub.cache, local_files_only=True)
    assert Path(found) == snapshot(hub, repository)


def test_connections_that_break_are_resumed_and_no_byte_is_sent_twice(
    hub: Hub, repository: Repository, server: HubServer, waits: list[float]
) -> None:
    server.faults.drops = {ONE: [500_001, 7, 100_000]}
    fetch(hub, repository)
    require_all(hub, repository)
    assert [sent.first for sent in server.of_file(ONE)] == [0, 500_001, 500_008, 600_008]
    assert server.bytes_sent(ONE) == len(FILES[ONE])
    assert waits == [1.0, 1.0, 1.0]


def test_a_download_that_failed_goes_on_where_it_ended(
    hub: Hub, repository: Repository, server: HubServer, waits: list[float]
) -> None:
    server.faults.drops = {ONE: [400_000, 0, 0, 0, 0]}
    with pytest.raises(Unreachable, match="cannot be reached") as caught:
        fetch(hub, repository)
    assert "what was downloaded is kept" in caught.value.hint
    assert waits == [1.0, 2.0, 4.0, 8.0]
    left = len(FILES[ONE]) - 400_000
    assert to_download(hub, repository, (repository.files[ONE],)) == left
    fetch(hub, repository)
    require_all(hub, repository)
    assert server.bytes_sent(ONE) == len(FILES[ONE])


@pytest.mark.parametrize("name", [ONE, SMALL])
def test_damaged_bytes_are_refused_deleted_and_fetched_again(
    hub: Hub, repository: Repository, server: HubServer, name: str
) -> None:
    server.faults.damaged = {name}
    with pytest.raises(HubError) as caught:
        fetch(hub, repository)
    digest = repository.files[name].digest
    assert f"`{name}` of `tiny/moe` arrived damaged" in str(caught.value)
    assert f"of digest {digest}, found {len(FILES[name])} of " in str(caught.value)
    assert not blob(hub, repository, repository.files[name]).exists()
    assert not (snapshot(hub, repository) / name).exists()
    server.faults.damaged = set()
    fetch(hub, repository)
    require_all(hub, repository)


def test_what_had_arrived_counts_in_the_digest(
    hub: Hub, repository: Repository, server: HubServer
) -> None:
    part = incomplete(hub, repository, repository.files[ONE])
    part.parent.mkdir(parents=True)
    part.write_bytes(b"\xff" + FILES[ONE][1:1000])
    with pytest.raises(HubError, match="arrived damaged"):
        fetch(hub, repository)
    assert [sent.first for sent in server.of_file(ONE)] == [1000]
    fetch(hub, repository)
    require_all(hub, repository)


def test_more_than_the_file_has_is_begun_again(hub: Hub, repository: Repository) -> None:
    part = incomplete(hub, repository, repository.files[TWO])
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * (len(FILES[TWO]) + 1))
    fetch(hub, repository)
    require_all(hub, repository)


def test_a_hub_without_ranges_sends_the_file_again(
    hub: Hub, repository: Repository, server: HubServer
) -> None:
    server.faults.ignores_ranges = True
    server.faults.drops = {ONE: [300_000]}
    fetch(hub, repository)
    require_all(hub, repository)


def test_a_silent_connection_is_left_and_resumed(
    hub: Hub, repository: Repository, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "TIMEOUT_S", 0.3)
    server.faults.silences = 1
    fetch(hub, repository)
    require_all(hub, repository)


def test_equal_files_arrive_once_and_are_both_there(tmp_path: Path) -> None:
    with serving({ONE: FILES[ONE], TWO: FILES[ONE]}) as server:
        hub = Hub(endpoint=server.url, cache=tmp_path / "hub", token=None)
        repository = look_up(hub, NAME, "main")
        assert to_download(hub, repository, all_of(repository)) == len(FILES[ONE])
        fetch(hub, repository)
        assert server.bytes_sent(ONE) + server.bytes_sent(TWO) == len(FILES[ONE])
    for name in (ONE, TWO):
        assert (snapshot(hub, repository) / name).read_bytes() == FILES[ONE]


def test_a_file_that_lost_bytes_is_fetched_again(hub: Hub, repository: Repository) -> None:
    fetch(hub, repository)
    place = snapshot(hub, repository) / TWO
    place.write_bytes(FILES[TWO][:-1])
    assert to_download(hub, repository, all_of(repository)) == len(FILES[TWO])
    fetch(hub, repository)
    require_all(hub, repository)


def test_a_newer_commit_takes_what_it_shares(
    hub: Hub, repository: Repository, server: HubServer
) -> None:
    fetch(hub, repository)
    server.commit, server.files[SMALL] = COMMIT[::-1], b"{}"
    newer = look_up(hub, NAME, "main")
    assert to_download(hub, newer, all_of(newer)) == 2
    fetch(hub, newer)
    assert len(server.of_file(ONE)) == 1
    assert (snapshot(hub, newer) / ONE).read_bytes() == FILES[ONE]
    assert (snapshot(hub, repository) / SMALL).read_bytes() == FILES[SMALL]


def test_a_gate_that_closes_ends_it_at_once(
    hub: Hub, repository: Repository, server: HubServer, waits: list[float]
) -> None:
    server.faults.gated = True
    with pytest.raises(HubError, match="is gated"):
        fetch(hub, repository)
    assert waits == []


def test_two_programs_do_not_write_one_file(hub: Hub, repository: Repository) -> None:
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_SH);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    place = hub.cache / ".locks" / storage(hub, NAME).name / "firmtoken.lock"
    place.parent.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        with pytest.raises(HubError, match="another program is downloading `tiny/moe` already"):
            fetch(hub, repository)
        other.stdin.close()
    fetch(hub, repository)
    require_all(hub, repository)


def test_a_folder_that_cannot_be_written_is_named(hub: Hub, repository: Repository) -> None:
    hub.cache.parent.mkdir(exist_ok=True)
    hub.cache.write_text("a file")
    with pytest.raises(HubError, match=r"cannot write `.*hub.*`: ") as caught:
        fetch(hub, repository)
    assert "HF_HOME" in caught.value.hint


def test_room_is_that_of_the_nearest_folder_that_is_there(hub: Hub) -> None:
    assert free_bytes(hub) > 0
    assert not hub.cache.exists()


ENDED = """
import resource, signal, sys
from pathlib import Path
from firmtoken.runtime.weights.hub import Hub, look_up
from firmtoken.runtime.weights.hub_download import download
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.default_int_handler)
hub = Hub(endpoint=sys.argv[1], cache=Path(sys.argv[2]), token=None)
repository = look_up(hub, "tiny/moe", "main")
try:
    download(hub, repository, tuple(repository.files.values()), lambda arrived: None)
except Exception as error:
    print(error, flush=True)
"""


def test_a_disk_that_gets_full_is_said_and_what_was_written_is_kept(
    hub: Hub, repository: Repository, server: HubServer
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDED, server.url, str(hub.cache), "600000"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "incomplete`: File too large" in ended.stdout
    kept = [incomplete(hub, repository, repository.files[name]) for name in (ONE, TWO)]
    assert max(part.stat().st_size for part in kept if part.exists()) == 600_000
    fetch(hub, repository)
    require_all(hub, repository)


def test_ctrl_c_ends_it_while_the_network_is_silent_and_keeps_every_byte(
    hub: Hub, repository: Repository, server: HubServer
) -> None:
    server.faults.silences = 2
    process = subprocess.Popen(
        [sys.executable, "-c", ENDED, server.url, str(hub.cache), str(2**40)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        part = incomplete(hub, repository, repository.files[ONE])
        end = time.monotonic() + 30
        while not (part.exists() and part.stat().st_size) and time.monotonic() < end:
            time.sleep(0.02)
        arrived = part.stat().st_size
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (1, 130, -signal.SIGINT)
        assert time.monotonic() - begun < 5
    finally:
        process.kill()
        process.wait()
        server.faults.silences = 0
    assert part.stat().st_size >= arrived > 0
    kept = part.stat().st_size
    fetch(hub, repository)
    require_all(hub, repository)
    assert server.of_file(ONE)[-1].first == kept
    assert [path.name for path in snapshot(hub, repository).parent.iterdir()] == [COMMIT]
