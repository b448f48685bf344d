"""The algebra of the gated delta net inside chunks (facts/models.md 2.5).

With G the running sum of g inside a chunk and D[i,j] = exp(G[i] - G[j]) for i >= j, else 0:

    A = strictly lower part of ((beta k) k^T * D)       (I + A) U = beta v       (I + A) P = beta k exp(G)
    new = U - P S        o = (q exp(G)) S + (q k^T * D) new        S <- exp(G_last) S + (k exp(G_last - G))^T new

A padded row has k = v = 0, beta = 0, g = 0, and so leaves the state alone.

Legend: N chunks, W rows of a chunk.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All that does not depend on the state, for N chunks."""

    queries: torch.Tensor
    """q exp(G), [N,Hv,W,Dk]"""
    scores: torch.Tensor
    """q k^T * D, [N,Hv,W,W]"""
    update: torch.Tensor
    """U, [N,Hv,W,Dv]"""
    read: torch.Tensor
    """P, [N,Hv,W,Dk]"""
    keys: torch.Tensor
    """(k exp(G_last - G))^T, [N,Hv,Dk,W]"""
    decay: torch.Tensor
    """exp(G_last), [N,Hv,1,1]"""

    def advance(self, index: int, state: torch.Tensor) -> torch.Tensor:
        """Output [Hv,W,Dv] of one chunk; state[Hv,Dk,Dv] in place."""
        new = torch.baddbmm(self.update[index], self.read[index], state, alpha=-1)
        output = torch.bmm(self.queries[index], state).baddbmm_(self.scores[index], new)
        state.mul_(self.decay[index]).baddbmm_(self.keys[index], new)
        return output


def prepare(
    *,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    strength: torch.Tensor,
    decay: torch.Tensor,
) -> Chunks:
    """From q, k [N,Hv,W,Dk], v [N,Hv,W,Dv], beta and g [N,Hv,W,1]."""
    total = decay.cumsum(dim=2)  # G
    last = total[:, :, -1:]
    growth = total.exp()
    between = causal_decay(total)
    weighted = keys * strength
    products = weighted @ keys.transpose(2, 3) * between
    right = torch.cat((values * strength, weighted * growth), dim=3)
    # Unit lower triangular: the solver reads only what is strictly below the diagonal of `products`.
    solved = torch.linalg.solve_triangular(products, right, upper=False, unitriangular=True)
    update, read = solved.split((values.shape[3], keys.shape[3]), dim=3)
    return Chunks(
        queries=queries * growth,
        scores=queries @ keys.transpose(2, 3) * between,
        update=update,
        read=read,
        keys=(keys * (last - total).exp()).transpose(2, 3),
        decay=last.exp(),
    )


def causal_decay(total: torch.Tensor) -> torch.Tensor:
    """D[N,Hv,W,W]: the mask comes before exp, which would overflow above the diagonal."""
    width = total.shape[2]
    above = torch.ones(width, width, dtype=torch.bool).triu_(1)
    return (total - total.transpose(2, 3)).masked_fill_(above, -torch.inf).exp_()
