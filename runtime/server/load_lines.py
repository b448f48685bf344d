"""What the log says while a model loads: the phase, how far it is, and how fast it goes."""

from firmtoken.runtime.engine.messages import Progress

EVERY_S = 1.0
MB, GB = 10**6, 10**9


class LoadLines:
    """One engine's start after another; each phase is said when it begins, then once a second."""

    def __init__(self) -> None:
        self._phase = ""
        self._begun_at = 0.0
        self._said_at = 0.0

    def line(self, progress: Progress, now: float) -> str | None:
        """The line for this progress, if it is worth one. `now`: seconds of a clock that only goes on."""
        if progress.phase != self._phase:
            self._phase, self._begun_at = progress.phase, now
        elif now < self._said_at + EVERY_S:
            return None
        self._said_at = now
        return f"loading: {progress.phase}{_share(progress, now - self._begun_at)}"


def _share(progress: Progress, seconds: float) -> str:
    if not progress.total:
        return ""
    unit, name = (GB, "GB") if progress.total >= GB else (MB, "MB")
    done, total = progress.done / unit, progress.total / unit
    share = f" {100 * progress.done / progress.total:.0f} %, {done:.1f} of {total:.1f} {name}"
    return share + (f", {done / seconds:.1f} {name}/s" if progress.done and seconds else "")
