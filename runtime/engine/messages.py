"""What the server process and the engine process say to each other: framed msgpack, never pickles (D11).

A frame is a little-endian uint32 length and that many bytes of msgpack. The server writes `Down`, the engine `Up`.
"""

from typing import Generic, Literal, TypeVar

import msgspec

FRAME_HEADER_BYTES = 4
MAX_FRAME_BYTES = 256 * 2**20

FinishReason = Literal["stop", "length", "abort", "error"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one request draws its tokens; Philox keyed by (seed, position), D19."""

    temperature: float
    """0 is arg-max, the lowest id on exact ties."""
    top_p: float
    top_k: int
    """0 keeps all."""
    min_p: float
    seed: int


GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
"""For requests of our own, whose answers nobody reads."""


class KnownText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the model should know something of: how the engine sees whether its weights are read right."""

    token_ids: list[int]
    counted: list[bool]
    """Of each token, whether its surprise counts."""
    most: float
    """The largest perplexity that is believed."""
    folder: str
    """Where what was read is remembered; empty: nowhere."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message: the whole plan as `ft plan --output` writes it, and where the shared segments are."""

    plan: bytes
    segments: dict[str, int]
    """Segment name -> file descriptor, inherited: `bank`, `snapshots` (those the plan's host ledger has)."""
    threads: int
    """Host threads for compute; `host.threads: auto` is filled in by the server process."""
    debug: bool = False
    """Check every invariant of the scheduler after each step."""
    test_faults: bool = False
    """A test's plan may name faults to happen; without this such a plan is refused."""
    known_text: KnownText | None = None
    """Read before warm-up, if given."""
    timed: bool = False
    """Let the device measure its decode steps, for `ft bench`; a CPU does not."""


class Add(msgspec.Struct, frozen=True, tag="add"):
    """One admitted request. Limits were checked at the door: prompt + 1 <= effective context."""

    request_id: int
    token_ids: list[int]
    max_output: int
    """Tokens to produce at most, >= 1; already lowered to what the context leaves."""
    sampling: Sampling
    stop_token_ids: list[int]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop this request, whatever phase it is in; answered by exactly one `Done`, unless `Done` was already sent."""

    request_id: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave after this step; running requests end as `abort`."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Loading: `phase` is a word for people; `done` of `total` bytes (0 of 0 when it cannot be said)."""

    phase: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything is allocated and the worst legal step has run."""

    load_s: float
    warm_up_s: float
    dense_bytes: int
    """Read from the checkpoint for everything but experts."""
    expert_bytes: int
    """Read from the checkpoint for experts: 0 where the last engine's are still in the segments (D11)."""


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The request left the queue; sent once more after a preemption, when it is resumed."""

    request_id: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache; what a resumed request finds of its own output is not counted."""
    pages: int
    waiting: int
    """Requests still in the engine's queue."""
    resumed: bool


class Preempted(msgspec.Struct, frozen=True, tag="preempted"):
    """The request gave its pages back and waits again; it keeps its text and resumes by itself.

    It made room for an older one, or starts over without a snapshot that was never written.
    """

    request_id: int


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """What one step produced: (request id, token id) in batch order. A stop token is included and is the last."""

    items: list[tuple[int, int]]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request's end, exactly once; its pages and slots are free when this is sent."""

    request_id: int
    reason: FinishReason
    message: str
    """Empty unless `reason` is `error`."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """Since the engine was ready, what should have come before; all 0 on a GPU, and nothing is counted on a CPU."""

    allocations: int = 0
    """Of torch's allocator on the device."""
    device_allocations: int = 0
    """That it asked the driver for."""
    compilations: int = 0
    """Of Triton functions, those that a cache on disk had too."""
    module_loads: int = 0
    """Of what they were compiled to."""


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Exact counters since the engine started, sent at most once a second and when it becomes idle."""

    running: int
    waiting: int
    pages_free: int
    pages_cached: int
    """Pages that only the prefix cache holds: free for whoever needs them."""
    pages_total: int
    state_slots_free: int
    snapshot_slots_free: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    expert_hits: int
    expert_misses: int
    link_bytes: dict[str, int]
    """Bytes copied from the host bank, by program (`decode`, `prefill`, `extend`)."""
    timed_steps: int = 0
    timed_s: float = 0.0
    """What the device took for those decode steps; none are timed unless `Start` says so."""
    late: Late = Late()


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The engine cannot go on; it exits after this. `code` is the process exit code of D10 that fits."""

    message: str
    hint: str
    code: int
    detail: str
    """A stack for the log file, never for the user's screen."""


class Log(msgspec.Struct, frozen=True, tag="log"):
    """One line for the server's log: what is about to be launched, who waits for what."""

    line: str


Down = Start | Add | Abort | Stop
Up = Progress | Ready | Admitted | Preempted | Tokens | Done | Stats | Fault | Log

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def frame(message: Down | Up) -> bytes:
    """Bytes of one message, header included."""
    body = _encoder.encode(message)
    return len(body).to_bytes(FRAME_HEADER_BYTES, "little") + body


class Frames(Generic[T]):
    """Cuts a byte stream into messages of one direction; owned by one reader."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Messages that `data` completes; raises `ValueError` on a frame longer than `MAX_FRAME_BYTES`."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= FRAME_HEADER_BYTES:
            length = int.from_bytes(self._buffer[:FRAME_HEADER_BYTES], "little")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes")
            end = FRAME_HEADER_BYTES + length
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(bytes(self._buffer[FRAME_HEADER_BYTES:end])))
            del self._buffer[:end]
        return messages
