"""mark does nothing."""

from firmtoken.runtime.kernels.batch import Batch


def mark(batch: Batch) -> None:
    """Nothing: the step exists for its drops and events."""
