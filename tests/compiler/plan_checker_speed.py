"""Predicted seconds, by the formulas of facts/prototype.md 4 with what runtime/kernels/NOTES.md measured on an H200.

Bytes at 80 % of the bandwidth, then 3.6 instructions a weight to decode it and 1.7 for each row outside tensor cores,
then 2 FLOP a weight and row at 45 % of the peak.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2, prod

from tests.compiler.plan_checker_model import Json, Model

# performance.md 3.4, Q36 LRU: share of a token's experts that are resident; above 0.70 prototype.md 2.2.
HITS = (
    *zip(
        (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.37, 0.45, 0.50, 0.60, 0.70),
        (0.36, 0.56, 0.65, 0.71, 0.75, 0.79, 0.84, 0.88, 0.90, 0.94, 0.97),
        strict=True,
    ),
    (0.80, 0.989),
    (0.90, 0.997),
    (0.95, 0.998),
)
# The same section: misses per layer and step of a batch, over its union of experts.
BATCH_SHARES = (0.25, 0.37, 0.50, 0.60, 0.75, 0.90, 0.97)
BATCHES = {
    4: (29.7, (12, 8.1, 5.1, 3.6, 1.6, 0.4, 0.1)),
    16: (91.6, (56, 40, 27, 18, 8.4, 2.2, 0.4)),
}
Points = Sequence[tuple[float, float]]


def _rounded(share: float) -> float:
    # The plan's tables hold the quotients of published figures to three digits, four below 2 %.
    return round(share, 3 if share >= 0.02 else 4)


MISSES: dict[int, Points] = {
    # Not published: a cache of fewer slots than a token visits keeps nothing.
    1: ((0.0, 1.0), (0.03, 0.98), *((at, 1 - hit) for at, hit in HITS), (1.0, 0.0)),
    **{
        batch: (
            (0.0, 1.0),
            *((at, _rounded(m / union)) for at, m in zip(BATCH_SHARES, misses, strict=True)),
            (1.0, 0.0),
        )
        for batch, (union, misses) in BATCHES.items()
    },
}


def missed(fraction: float, sequences: int) -> float:
    """Share of a step's distinct experts that are not resident; between batches by their logarithm."""
    if sequences >= 16:
        return _between(MISSES[16], fraction)
    low, high = (1, 4) if sequences <= 4 else (4, 16)
    weight = log2(sequences / low) / log2(high / low)
    one, other = _between(MISSES[low], fraction), _between(MISSES[high], fraction)
    return one + weight * (other - one)


def _between(points: Points, at: float) -> float:
    for (left, low), (right, high) in pairwise(points):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates of a plan's hardware."""

    kind: str
    early: bool
    """Whether a launch may start before the one before it has ended."""
    capacity: int
    reserve: int
    bandwidth: float
    flops: float
    lanes: float
    """Instructions a second: an FMA is two FLOP."""
    launch_s: float
    copy: float
    gather: float
    host: int
    pinnable: int


def read_machine(hardware: Json) -> Machine:
    """Numbers of `plan.hardware`; a CPU without a link copies in its own RAM, reading and writing."""
    gpu, cpu, host, link = (hardware[name] for name in ("gpu", "cpu", "host", "link"))
    device, pinnable = cpu or gpu, host["pinnable"]
    if pinnable == "auto":
        windows = hardware["software"]["os"] in ("wsl", "windows")
        pinnable = host["memory"] * (40 if windows else 75) // 100
    return Machine(
        kind="cpu" if cpu else "cuda",
        early=not cpu and int(gpu["compute_capability"].partition(".")[0]) >= 9,
        capacity=device["memory"],
        reserve=0 if cpu else gpu["reserve"],
        bandwidth=device["bandwidth"],
        flops=cpu["flops"] if cpu else gpu["flops"]["bf16"],
        lanes=0.0 if cpu else gpu["flops"]["fp32"] / 2,
        launch_s=device["launch_us"] * 1e-6,
        copy=link["h2d"] if link else host["bandwidth"] / 2,
        gather=link["gather"] if link else host["bandwidth"] / 2,
        host=host["memory"],
        pinnable=host["memory"] if cpu else pinnable,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of one placement with so many slots."""

    machine: Machine
    model: Model
    captured: bool
    overlaps: bool
    """Expert copies have a stream of their own."""
    slot_bytes: int
    kv_bytes: int
    """Of a token."""
    launches: int
    offloaded: bool
    slots: int
    span: int
    tile: int
    chunk: int
    waves: int
    """In how many parts a layer's misses pass the ring."""

    @property
    def fraction(self) -> float:
        return self.slots / self.model.total

    @property
    def missing(self) -> int:
        return self.model.total - self.slots if self.offloaded else 0

    @property
    def stream_s(self) -> float:
        """Every missing expert once over the copy engine."""
        return self.missing * self.slot_bytes / self.machine.copy

    @property
    def hit_rate(self) -> float:
        return 1 - missed(self.fraction, 1) if self.offloaded else 1.0

    def distinct(self, tokens: int) -> float:
        """U(T): experts of a layer that so many tokens visit."""
        experts = self.model.experts
        return experts * (1 - (1 - self.model.routed / experts) ** tokens)

    def decode_bytes(self, sequences: int, depth: int) -> float:
        """Read by a decode step; states are read and written."""
        experts = self.model.layers * self.distinct(sequences) * self.slot_bytes
        each = depth * self.kv_bytes + 2 * self.model.state_bytes
        return self.model.read_bytes + experts + sequences * each

    def link_bytes(self, sequences: int) -> float:
        """Of experts that a decode step fetches."""
        if not self.offloaded:
            return 0.0
        each = self.distinct(sequences) * missed(self.fraction, sequences)
        return self.model.layers * each * self.slot_bytes

    @property
    def graph_rows(self) -> list[int]:
        """Lengths of prompts that are captured."""
        return self.padded_rows if self.captured and not self.offloaded else []

    @property
    def padded_rows(self) -> list[int]:
        """Lengths to which a short prompt is padded, up to a tile; without a graph it is not taken for shorter."""
        if not self.gpu:
            return []
        lengths = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048)
        return [rows for rows in lengths if rows <= self.tile]

    @property
    def gpu(self) -> bool:
        return self.machine.kind == "cuda"

    @property
    def dense(self) -> int:
        """Parameters that a token is multiplied with beside routed experts and the head."""
        return self.model.active - self.model.layers * self.model.routed * self.expert

    @property
    def expert(self) -> int:
        return 3 * prod(self.model.expert_elements)

    def read_s(self, number: float) -> float:
        return number / (0.8 * self.machine.bandwidth)

    def flop_s(self, weights: float, rows: float, share: float = 0.45) -> float:
        return 2 * weights * rows / (share * self.machine.flops)

    def few_s(self, weights: float, rows: float) -> float:
        """Up to four rows by lanes, more of them by tensor cores."""
        if not self.gpu:
            return self.flop_s(weights, rows)
        lanes = weights * (3.6 + 1.7 * min(4, rows)) / self.machine.lanes
        return lanes + self.flop_s(weights, max(0, rows - 4))

    def many_s(self, weights: float, rows: float, tiles: float) -> float:
        decoded = 3.6 * weights * tiles / self.machine.lanes if self.gpu else 0.0
        return decoded + self.flop_s(weights, rows)

    def decode_s(self, sequences: int, depth: int) -> float:
        """Work, 1.6 us a launch (2.6 where none starts early), 12 us a layer of admission, misses, 20 us of the host.

        Without a graph each launch adds its time on the host; a CPU has nothing else that is fixed.
        """
        model, distinct = self.model, self.distinct(sequences)
        seconds = self.read_s(self.decode_bytes(sequences, depth))
        seconds += self.few_s(self.dense + model.head, sequences)
        each = sequences * model.routed / distinct
        seconds += model.layers * self.few_s(distinct * self.expert, each)
        if self.gpu:
            seconds += self.launches * (1.6e-6 if self.machine.early else 2.6e-6) + 20e-6
            seconds += model.layers * 12e-6 if self.offloaded else 0
        if not self.captured:
            seconds += self.launches * self.machine.launch_s
        return seconds + self.link_bytes(sequences) / self.machine.gather

    def attention_s(self, tokens: int, depth: int) -> float:
        """a * pairs / F: 37 % of the peak; at least 2.1 us for 64 tokens and layer."""
        flop = self.model.flop_pair * tokens * (depth + tokens / 2)
        if not self.gpu:
            return flop / (0.45 * self.machine.flops)
        way = -(-(depth + tokens) // 64) * 2.1e-6
        return max(flop / (0.37 * self.machine.flops), self.model.kinds.count("full") * way)

    def experts_s(self, tokens: int) -> float:
        """Routed experts, chunk by chunk: half a tile of padding behind each."""
        return self.model.layers * sum(
            self._chunk_experts_s(min(self.chunk, tokens - done))
            for done in range(0, tokens, self.chunk)
        )

    def _chunk_experts_s(self, tokens: int) -> float:
        distinct = self.distinct(tokens)
        each = tokens * self.model.routed / distinct
        tile = min(128, max(16, each))
        rows = each + tile / 2 if self.gpu else each
        done = self.many_s(distinct * self.expert, rows, max(1, rows / tile))
        return self.read_s(distinct * self.slot_bytes) + done

    def compute_s(self, tokens: int, depth: int) -> float:
        """C(T, d)."""
        padded = next((rows for rows in self.padded_rows if rows >= tokens), tokens)
        seconds = self.read_s(-(-tokens // self.tile) * self.model.read_bytes)
        seconds += self.many_s(self.dense, padded, max(1, padded / 128))
        seconds += self.few_s(self.model.head, 1) + self.experts_s(tokens)
        fixed = self.launches * self.machine.launch_s
        if self.gpu:
            fixed = max(fixed, self.model.layers * 90e-6)
            seconds += self.model.linear * -(-tokens // 64) * 6.5e-6
        chunks = -(-tokens // self.chunk)
        seconds += chunks * fixed + self.attention_s(tokens, depth)
        longest = self.graph_rows[-1] if self.graph_rows else 0
        beyond = self.gpu and not self.offloaded and tokens > longest
        return max(seconds, chunks * self.model.layers * 2e-3 if beyond else 0.0)

    def first_s(self, tokens: int) -> float:
        """A prompt, and 1.5 ms of the host around it."""
        return self.prefill_s(tokens) + self.first_host_s

    @property
    def first_host_s(self) -> float:
        return 1.5e-3 if self.gpu else 0.0

    def prefill_s(self, tokens: int, depth: int = 0) -> float:
        """t_stream(N): one layer's misses are waited for, then passes of a span; on one stream all misses are."""
        seconds = self.stream_s / self.model.layers if self.overlaps else 0.0
        for done in range(0, tokens, self.span):
            seconds += self.pass_s(min(self.span, tokens - done), depth + done)
        return seconds

    def pass_s(self, tokens: int, depth: int) -> float:
        """t_pass(T), layer by layer: only layers with full attention do what grows with depth."""
        compute = self.compute_s(tokens, depth)
        if not self.overlaps:
            return compute + self.stream_s
        attention = self.attention_s(tokens, depth)
        each, ahead = (compute - attention) / self.model.layers, self.stream_s / self.model.layers
        full = self.model.kinds.count("full")
        whole = sum(
            max(each + (attention / full if kind == "full" else 0.0), ahead)
            for kind in self.model.kinds
        )
        if self.waves <= 2:
            return whole
        # Two waves come while mixers run; of the others a layer waits for each, and computes two of them alone.
        experts = self.experts_s(tokens)
        in_turn = (self.waves - 2) * self.stream_s + 2 * experts
        return max(whole, compute - experts + in_turn / self.waves)

    def on_demand_s(self, tokens: int, hits: float) -> float:
        """t_on_demand: nothing overlaps."""
        each = self.missing / self.model.layers
        q = min(1.0, self.model.routed * (1 - hits) / each)
        fetched = self.missing * (1 - (1 - q) ** tokens) * self.slot_bytes / self.machine.gather
        return self.compute_s(tokens, 0) + fetched + self.model.layers * 30e-6

    def hiding(self, most: int) -> int:
        """N*: the least pass whose compute hides the stream."""
        passes = range(1, most)
        return 1 + bisect_left(passes, True, key=lambda t: self.compute_s(t, 0) >= self.stream_s)

    def turn_s(self, sequences: int) -> float:
        """D16: 2,000 uncached tokens in, 400 out at depth 8k, by `sequences` at once."""
        return sequences * self.first_s(2_000) + 400 * self.decode_s(sequences, 8_192)
