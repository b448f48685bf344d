"""prescribe in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def prescribe(batch: Batch, *, ids: torch.Tensor, routes: torch.Tensor, conversation: int) -> None:
    """ids[T,k] = routes[P,k] by position and sequence."""
    for place, segment in enumerate(batch.segments):
        rows = slice(segment.first, segment.first + segment.rows)
        at = (batch.positions[rows] + conversation * place) % routes.shape[0]
        ids[rows] = routes[at]
