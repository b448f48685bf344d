"""`HeldRequests`: the requests that an engine holds, from `Add` to `Done`, and where their events go."""

from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.runtime.engine.messages import Add, Admitted, Done
from firmtoken.runtime.server.errors import ApiError
from firmtoken.runtime.server.session import Session, Token


@dataclass(slots=True, kw_only=True)
class _Record:
    """Kept until its `Done`, also after its client left."""

    session: Session | None
    prompt_tokens: int
    admitted: bool


class HeldRequests:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_running(self) -> int:
        """Those that the engine has admitted."""
        return sum(record.admitted for record in self._records.values())

    @property
    def num_waiting(self) -> int:
        """Those that it has not admitted yet."""
        return len(self._records) - self.num_running

    @property
    def waiting_prompt_tokens(self) -> int:
        """Prompt tokens of those that wait."""
        return sum(record.prompt_tokens for record in self._records.values() if not record.admitted)

    def hold(self, session: Session, add: Add) -> None:
        """The engine is told of it now."""
        self._records[add.request_id] = _Record(
            session=session, prompt_tokens=len(add.token_ids), admitted=False
        )

    def leave(self, request_id: int) -> None:
        """Its client has left; the engine still holds it.

        The record stays until `Done`: dropped now, its slot would look free while the engine still has it.
        """
        self._records[request_id].session = None

    def deliver(self, event: Admitted | Token | Done) -> None:
        """To whoever waits for it; nobody does any more where the client left."""
        record = self._records.get(event.request_id)
        if record is None:
            return
        if isinstance(event, Admitted):
            record.admitted = True
        if isinstance(event, Done):
            del self._records[event.request_id]
        if record.session is not None:
            record.session.deliver(event)

    def note_preempted(self, request_id: int) -> None:
        """It waits again."""
        record = self._records.get(request_id)
        if record is not None:
            record.admitted = False

    def fail_all(self, failure: Callable[[bool], ApiError]) -> int:
        """The engine is gone: each hears `failure(it had been admitted)`. How many there were."""
        records, self._records = self._records, {}
        for record in records.values():
            if record.session is not None:
                record.session.fail(failure(record.admitted))
        return len(records)
