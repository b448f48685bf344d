"""sample in plain torch, in fp64 from the logits on."""

import torch

from firmtoken.runtime.kernels.batch import Batch, Draw
from firmtoken.runtime.kernels.sample.philox import uniform


def sample(batch: Batch, *, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    """tokens[S] from logits[S,V], row s as draws[s] says."""
    greedy = logits.argmax(dim=-1)  # the first of equals
    tokens.copy_(greedy)
    for row, draw in enumerate(batch.draws):
        if draw.temperature > 0:
            tokens[row] = draw_token(logits[row], draw)


def draw_token(logits: torch.Tensor, draw: Draw) -> int:
    """One token id from logits[V]."""
    scaled = logits.double() / draw.temperature
    ids = keep_top_k(scaled, draw.top_k)
    weights = torch.softmax(scaled[ids], dim=0)
    kept = keep_top_p(weights, draw.top_p) & (weights >= draw.min_p * weights.max())
    ids, weights = ids[kept], weights[kept]
    # In order of id, not of weight: a small change of the logits then moves boundaries a little, never swaps intervals.
    cumulative = weights.cumsum(0)
    point = uniform(draw.seed, draw.position) * cumulative[-1]
    index = torch.searchsorted(cumulative, point, right=True).clamp(max=len(ids) - 1)
    return int(ids[index])


def keep_top_k(scaled: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending ids of the k largest, the lowest ids among equals; all for k = 0."""
    if k == 0 or k >= scaled.shape[0]:
        return torch.arange(scaled.shape[0])
    least = torch.topk(scaled, k).values[-1]
    above = (scaled > least).nonzero().view(-1)
    equal = (scaled == least).nonzero().view(-1)[: k - above.shape[0]]
    return torch.cat((above, equal)).sort().values


def keep_top_p(weights: torch.Tensor, p: float) -> torch.Tensor:
    """bool [n]: the shortest run of largest weights whose sum reaches p, the lowest ids first among equals."""
    if p >= 1:
        return torch.ones_like(weights, dtype=torch.bool)
    ordered, order = weights.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = torch.empty_like(weights, dtype=torch.bool)
    kept[order] = before < p
    kept[order[0]] = True
    return kept
