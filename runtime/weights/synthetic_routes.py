"""Tables of prescribed experts with the locality and skew of real routers (facts/performance.md 3.4).

Gaussian logits of each layer, the k largest of which are taken:

    x[t] = sqrt(g) popularity + sqrt(d) liking + sqrt(z) topic[t] + sqrt(1 - g - d - z) noise[t]
    topic[t] = phi topic[t-1] + sqrt(1 - phi^2) noise'[t]

popularity is the layer's, liking the conversation's. The draws are numpy's own, which it may change one day: tables
are compared within one run, not kept.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firmtoken.compiler.prescribed_routes import CONVERSATION, CONVERSATIONS

TOKENS = 64
"""Drawn at once: token by token, threads that make tables would wait for the interpreter's lock most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Shares of variance, and how much of the topic stays from one token to the next."""

    popularity: float
    liking: float
    topic: float
    phi: float


ROUTERS: Mapping[str, Router] = {
    "q36": Router(popularity=0.13, liking=0.18, topic=0.35, phi=0.88),
    "fnx": Router(popularity=0.10, liking=0.31, topic=0.13, phi=0.963),
    "q30": Router(popularity=0.10, liking=0.37, topic=0.22, phi=0.978),
    "nem": Router(popularity=0.05, liking=0.145, topic=0.41, phi=0.68),
}
"""Fitted to published hit rates of Qwen3.6 (the default there), Qwen3.8-Flash-Next, Qwen3-30B-A3B and Nemotron."""


def route_table(
    router: Router, *, seed: int, layer: int, num_experts: int, chosen: int
) -> NDArray[np.int32]:
    """int32 [CONVERSATIONS * CONVERSATION, k] of one layer: different experts in each row, in no order."""
    key = hashlib.blake2b(f"{seed}/routes/{layer}".encode(), digest_size=16).digest()
    draw = np.random.Generator(np.random.Philox(key=int.from_bytes(key)))
    shape = (CONVERSATIONS, num_experts)
    fixed = router.popularity**0.5 * draw.standard_normal(num_experts)
    fixed = fixed + router.liking**0.5 * draw.standard_normal(shape)
    noise = (1 - router.popularity - router.liking - router.topic) ** 0.5
    fresh = (1 - router.phi**2) ** 0.5
    topic = draw.standard_normal(shape)
    table = np.empty((CONVERSATIONS, CONVERSATION, chosen), np.int32)
    fades = router.phi ** np.arange(1, TOKENS + 1).reshape(-1, 1, 1)
    for first in range(0, CONVERSATION, TOKENS):
        # Of each token its topic's step, then its noise.
        drawn = draw.standard_normal((TOKENS, 2, *shape))
        topics = fades * (topic + np.cumsum(fresh / fades * drawn[:, 0], axis=0))
        topic = topics[-1]
        logits = fixed + router.topic**0.5 * topics + noise * drawn[:, 1]
        best = np.argpartition(-logits, chosen - 1, axis=2)[:, :, :chosen]
        table[:, first : first + TOKENS] = best.swapaxes(0, 1)
    return table.reshape(-1, chosen)
