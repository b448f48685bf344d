"""What the hub refuses, or what is in the way to it: one sentence and a remedy, and whether asking again may help."""

from dataclasses import dataclass

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.schema.diagnostic import printable

FAULTS = (HfHubHTTPError, httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled)
"""What a request to the hub raises. The first of them is also an `OSError`, as faults of the disk are."""
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that may be another one soon."""
BROKEN = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError)
"""Connections that may hold another time; a proxy or an address that is none does not get better."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
MAX_SHOWN = 200


class HubError(HintedFault):
    """A checkpoint cannot be had from the hub: one sentence, of which a server may have said a part, and a remedy."""

    def __init__(self, text: str, *, hint: str) -> None:
        super().__init__(printable(text), hint)


class Unreachable(HubError):
    """There was no answer: offline, no network, or a hub that only fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request was about."""

    endpoint: str
    repo: str
    revision: str
    has_token: bool
    file: str = ""


def pause_s(error: Exception, tries: int) -> float | None:
    """Seconds until the next try, after `tries` of them; None if another would not help."""
    doubled = FIRST_PAUSE_S * 2 ** (tries - 1)
    if isinstance(error, HfHubHTTPError):
        if error.response.status_code not in BUSY:
            return None
        wished = error.response.headers.get("Retry-After", "")
        return min(float(wished) if wished.isdecimal() else doubled, LONGEST_PAUSE_S)
    return doubled if isinstance(error, BROKEN) else None


def explain(error: Exception, asked: Asked) -> HubError:
    """The sentence for one of `FAULTS`."""
    repo, page = f"`{asked.repo}`", f"{asked.endpoint}/{asked.repo}"
    match error:
        case OfflineModeIsEnabled():
            return Unreachable(
                f"{repo} cannot be asked for: `HF_HUB_OFFLINE` is set",
                hint="unset it, or name a checkpoint that is here: `model.source: {path: ...}`",
            )
        case RevisionNotFoundError():
            return HubError(
                f"{repo} has no revision `{asked.revision}`",
                hint=f"a branch, a tag or a whole commit of {page}/tree/main; left out, it is `main`",
            )
        case GatedRepoError():
            return HubError(f"{repo} is gated", hint=_gate(page, asked.has_token))
        case RepositoryNotFoundError():
            return HubError(
                f"{asked.endpoint} has no repository {repo}, or a private one",
                hint="check its name; for a private one, set `HF_TOKEN`"
                if not asked.has_token
                else "check its name, and that the account of your token may read it",
            )
        case RemoteEntryNotFoundError():
            return HubError(
                f"{repo} has no file `{asked.file}` at `{asked.revision}`",
                hint=f"choose a revision that has it: {page}/tree/main",
            )
        case DisabledRepoError():
            return HubError(
                f"the hub has disabled {repo}", hint=f"choose another repository; see {page}"
            )
        case HfHubHTTPError():
            return _refused(error, asked)
    said = str(error) or type(error).__name__
    return Unreachable(
        f"{asked.endpoint} cannot be reached: {said}",
        hint="check the network; what was downloaded is kept",
    )


def _gate(page: str, has_token: bool) -> str:
    if has_token:
        return f"the account of your token has no access: ask for it at {page}"
    return f"accept its terms at {page}, then set `HF_TOKEN` to a token of that account"


def _refused(error: HfHubHTTPError, asked: Asked) -> HubError:
    status = error.response.status_code
    server = " ".join((error.server_message or "").split())[:MAX_SHOWN]
    said = f"{asked.endpoint} answers {status}" + (f" ({server})" if server else "")
    what = f" for `{asked.file}` of `{asked.repo}`" if asked.file else f" for `{asked.repo}`"
    if status in BUSY:
        return Unreachable(said + what, hint="try again later; what was downloaded is kept")
    if status in (401, 403):
        hint = (
            "your token is not accepted there: set `HF_TOKEN` to another, or unset it"
            if asked.has_token
            else "set `HF_TOKEN` to a token that may read it"
        )
        return HubError(said + what, hint=hint)
    return HubError(said + what, hint="is it a hub? `HF_ENDPOINT` chooses which one is asked")
