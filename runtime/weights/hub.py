"""The hub: which commit a revision is, which files it has, and their bytes from any offset on. Knows no cache."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from huggingface_hub import constants, get_session, get_token, hf_hub_url, hf_raise_for_status

from firmtoken import __version__
from firmtoken.runtime.weights.checkpoint import is_file_name
from firmtoken.runtime.weights.hub_errors import FAULTS, Asked, HubError, explain, pause_s

COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
TIMEOUT_S = 10.0
"""Of a connection, and of the silence between two pieces of an answer."""
TRIES = 5
MAX_LISTING_BYTES = 64 * 2**20
"""Of a repository's list of files: one without an end would be read for ever."""
PARTIAL = 206
NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What msgspec raises; the last one for brackets nested without end."""
Size = Annotated[int, msgspec.Meta(ge=0)]
ENVIRONMENT = (
    "set right or unset: `HF_ENDPOINT`, `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `SSL_CERT_FILE`,"
    " `SSL_CERT_DIR`"
)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """How the hub is reached, and where its files are kept."""

    endpoint: str
    cache: Path
    """The library's own cache, which other programs share."""
    token: str | None
    wait: Callable[[float], None] = time.sleep
    """Between two tries, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository at one commit."""

    name: str
    bytes: int
    digest: str
    """In hexadecimal: sha256 of a large file, git's sha1 of a small one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository at one commit: the files of its top folder, the only ones that a checkpoint has."""

    name: str
    revision: str
    """As it was asked for."""
    commit: str
    files: Mapping[str, HubFile]


def usual_hub() -> Hub:
    """As `HF_HOME`, `HF_TOKEN` and the library's other variables say; it reads them itself, when it is imported.

    Raises `HubError` for a token, a proxy, certificates or an address that cannot be used.
    """
    try:
        token = get_token() or None
    except (OSError, ValueError) as error:
        raise HubError(
            f"the token of the hub cannot be read: {error}",
            hint="set `HF_TOKEN`, or let `HF_HOME` and `HF_TOKEN_PATH` name places that can be read",
        ) from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise HubError(
            "`HF_TOKEN` or the saved token is none: it has characters that no token has",
            hint="copy it again, or unset it and delete the saved one",
        )
    try:
        urlsplit(constants.ENDPOINT).port  # noqa: B018  raises for one that is none
        get_session()
    except (OSError, ValueError) as error:
        raise HubError(
            f"the hub cannot be asked as the environment says: {error}", hint=ENVIRONMENT
        ) from error
    return Hub(
        endpoint=constants.ENDPOINT, cache=Path(constants.HF_HUB_CACHE).absolute(), token=token
    )


class _Large(msgspec.Struct):
    """What stands for a large file in git."""

    size: Size
    sha256: str


class _Listed(msgspec.Struct):
    """A file in the hub's answer."""

    rfilename: str
    size: Size | None = None
    blob_id: str | None = msgspec.field(name="blobId", default=None)
    lfs: _Large | None = None


class _Listing(msgspec.Struct):
    """The part of the hub's answer that is read."""

    sha: str
    siblings: list[_Listed]


def look_up(hub: Hub, name: str, revision: str) -> Repository:
    """One request: the commit that `revision` is now, and its files; raises `HubError`.

    Not by the library's `HfApi`, which fetches a list of programs first, to tell the hub which of them asks.
    """
    asked = asked_of(hub, name, revision)
    url = f"{hub.endpoint}/api/models/{name}/revision/{quote(revision, safe='')}"

    def ask() -> bytes:
        session, headers = get_session(), _headers(hub)
        with session.stream(
            "GET", url, params={"blobs": "true"}, headers=headers, timeout=TIMEOUT_S
        ) as answer:
            hf_raise_for_status(answer)
            return read_at_most(answer, MAX_LISTING_BYTES)

    try:
        listing = msgspec.json.decode(patiently(ask, asked, hub.wait), type=_Listing)
    except NOT_JSON as error:
        raise _strange(asked, str(error)) from error
    if not COMMIT.fullmatch(listing.sha):
        raise _strange(asked, f"the commit `{listing.sha}`")
    files = {
        listed.rfilename: _file(listed, asked)
        for listed in listing.siblings
        if is_file_name(listed.rfilename)
    }
    return Repository(name=name, revision=revision, commit=listing.sha, files=files)


def asked_of(hub: Hub, name: str, revision: str, file: str = "") -> Asked:
    return Asked(
        endpoint=hub.endpoint,
        repo=name,
        revision=revision,
        has_token=hub.token is not None,
        file=file,
    )


def patiently(ask: Callable[[], Result], asked: Asked, wait: Callable[[float], None]) -> Result:
    """What `ask` returns; a busy hub is asked again a few times. Raises `HubError`."""
    for attempt in range(1, TRIES + 1):
        try:
            return ask()
        except FAULTS as error:
            pause = pause_s(error, attempt)
            # Nobody waits for a network that is not there: whoever has the files can go on at once.
            is_away = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if pause is None or attempt == TRIES or is_away:
                raise explain(error, asked) from error
            wait(pause)
    raise AssertionError("the last try returns or raises")


@contextmanager
def opened(
    hub: Hub, repository: Repository, file: HubFile, first: int, count: int | None = None
) -> Iterator[httpx2.Response]:
    """An answer with the bytes of a file from `first` on, `count` of them or all.

    Its status is 206, unless the hub knows no ranges and sends the whole file. Raises one of `FAULTS`.
    """
    url = hf_hub_url(repository.name, file.name, revision=repository.commit, endpoint=hub.endpoint)
    # Compressed, the bytes of a range would be those of another file.
    headers = _headers(hub) | {"Accept-Encoding": "identity"}
    if first or count is not None:
        last = "" if count is None else first + count - 1
        headers["Range"] = f"bytes={first}-{last}"
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
        hf_raise_for_status(response)
        yield response


def read_at_most(answer: httpx2.Response, count: int) -> bytes:
    """The answer's content, cut soon behind `count` bytes: one without an end would be read for ever."""
    content = bytearray()
    for piece in answer.iter_bytes():
        content += piece
        if len(content) > count:
            break
    return bytes(content)


def _headers(hub: Hub) -> dict[str, str]:
    who = {"User-Agent": f"firmtoken/{__version__}"}
    return who if hub.token is None else who | {"Authorization": f"Bearer {hub.token}"}


def _file(listed: _Listed, asked: Asked) -> HubFile:
    size = listed.size if listed.lfs is None else listed.lfs.size
    digest = listed.blob_id if listed.lfs is None else listed.lfs.sha256
    if size is None or digest is None or not DIGEST.fullmatch(digest):
        raise _strange(asked, f"`{listed.rfilename}` without a size or a digest")
    return HubFile(name=listed.rfilename, bytes=size, digest=digest)


def _strange(asked: Asked, found: str) -> HubError:
    return HubError(
        f"{asked.endpoint} says of `{asked.repo}` what a hub does not: {found}",
        hint="is it a hub? `HF_ENDPOINT` chooses which one is asked",
    )
