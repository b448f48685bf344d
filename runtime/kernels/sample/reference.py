"""sample in plain torch, in fp64 from the logits on."""

from math import isfinite

import torch

from firmtoken.runtime.kernels.batch import Batch, Draw
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN
from firmtoken.runtime.kernels.sample.philox import uniform

MIN_TEMPERATURE = 1e-5
"""Below it a draw is arg-max: rivals a hundredth of a logit apart are e^1000 apart there."""


def sample(batch: Batch, *, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    """tokens[S] from logits[S,V], row s as draws[s] says; NO_TOKEN where the largest logit is not finite."""
    greedy = logits.argmax(dim=-1, keepdim=True)  # the first of equals; a NaN counts as the largest
    tokens.copy_(greedy.view(-1))
    largest: list[float] = logits.gather(1, greedy).view(-1).tolist()
    for row, value in enumerate(largest):
        if not isfinite(value):
            tokens[row] = NO_TOKEN
    for row, draw in enumerate(batch.draws):
        if draw.temperature >= MIN_TEMPERATURE and isfinite(largest[row]):
            tokens[row] = draw_token(logits[row], draw)


def draw_token(logits: torch.Tensor, draw: Draw) -> int:
    """One token id from logits[V]."""
    ids = keep_top_k(logits, draw.top_k)
    weights = weigh(logits[ids], draw.temperature)
    kept = keep_top_p(weights, draw.top_p) & (weights >= draw.min_p * weights.max())
    ids, weights = ids[kept], weights[kept]
    # In order of id, not of weight: a small change of the logits then moves boundaries a little, never swaps intervals.
    cumulative = weights.cumsum(0)
    point = uniform(draw.seed, draw.position) * cumulative[-1]
    index = torch.searchsorted(cumulative, point, right=True).clamp(max=len(ids) - 1)
    return int(ids[index])


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending ids of the k largest, the lowest ids among equals; all for k = 0."""
    if k == 0 or k >= logits.shape[0]:
        return torch.arange(logits.shape[0])
    least = torch.topk(logits, k).values[-1]
    above = (logits > least).nonzero().view(-1)
    equal = (logits == least).nonzero().view(-1)[: k - above.shape[0]]
    return torch.cat((above, equal)).sort().values


def weigh(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """fp64 softmax of logits / temperature. The maximum goes first: what is left is <= 0 and cannot overflow exp."""
    below = logits.double()
    return torch.softmax((below - below.max()) / temperature, dim=0)


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
