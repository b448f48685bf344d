"""The profile: what hardware there is, which model to serve, and what the user needs."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, PlainSerializer, Tag

from firmtoken.schema.frozen_map import FrozenMap
from firmtoken.schema.hardware import Hardware
from firmtoken.schema.model import Model
from firmtoken.schema.section import Section
from firmtoken.schema.units import COUNT, SECONDS, TOKENS, Quantity

MAX_TOKENS = 2**30


class Serving(Section):
    """What the user needs."""

    context: Annotated[
        int | Literal["max", "auto"], Quantity(unit=TOKENS, least=2, most=MAX_TOKENS)
    ] = "auto"
    """Tokens one request may hold, prompt and output together: a number, `max`, or `auto`."""
    pool: Annotated[int | Literal["auto"], Quantity(unit=TOKENS, least=2, most=MAX_TOKENS)] = "auto"
    """Tokens that all requests together may hold; at least `context`."""
    requests: Annotated[int, Field(ge=1, le=256)] = 4
    """Sequences that run at the same time."""
    prefer: Literal["context", "balanced", "speed"] = "balanced"
    """What `auto` trades for."""
    queue: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Requests that may wait; the next one gets 429."""
    output: Annotated[int, Quantity(unit=TOKENS, least=1, most=MAX_TOKENS)] = 8192
    """Output budget of a request that names none; a ceiling, lowered to what the context leaves."""


class Cache(Section):
    """The KV cache and the reuse of prefixes."""

    type: Literal["auto", "none", "radix", "hybrid_radix"] = "auto"
    """Prefix cache: `hybrid_radix` is for models with linear-attention layers, `radix` for others."""
    page_size: Annotated[int | Literal["auto"], Quantity(unit=COUNT, least=1, most=256)] = "auto"
    """Tokens of a page: a power of two."""
    kv_dtype: Literal["auto", "fp8", "bf16", "fp32"] = "auto"
    """Number format of keys and values; `auto` follows the checkpoint's declaration."""


class Experts(Section):
    """Where the routed experts live."""

    placement: Literal["auto", "resident", "offload"] = "auto"
    """`resident`: all on the device. `offload`: all in host memory, some copied to the device."""
    slots: Annotated[int | Literal["auto"], Quantity(unit=COUNT, least=0, most=2**24)] = "auto"
    """Expert copies on the device that decode may hit, over all layers."""


class Schedule(Section):
    """How work is cut into steps."""

    prefill_chunk: Annotated[
        int | Literal["auto"], Quantity(unit=TOKENS, least=1, most=MAX_TOKENS)
    ] = "auto"
    """Prompt tokens that pass through one op together."""
    prefill_span: Annotated[
        int | Literal["auto"], Quantity(unit=TOKENS, least=1, most=MAX_TOKENS)
    ] = "auto"
    """Prompt tokens that pass through a layer before the next layer starts."""
    on_demand_below: Annotated[
        int | Literal["auto"], Quantity(unit=TOKENS, least=0, most=MAX_TOKENS)
    ] = "auto"
    """Prompts shorter than this fetch only the experts they route to."""
    step_deadline: Annotated[
        float | Literal["auto"], Quantity(unit=SECONDS, least=1, most=86_400)
    ] = "auto"
    """How long one step, or one layer of a prompt, may take before the engine counts as stalled; at least 1 s."""


class Streams(Section):
    """How ops are spread over streams of the device."""

    layout: Literal["auto", "single"] = "auto"
    """`single`: no side stream, for comparison."""


class Avoid(Section):
    """Kernels that must not be chosen."""

    avoid: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Names of kernels."""


def choice_kind(choice: object) -> str | None:
    """The tag of the union below; in angle brackets, which no kernel name has."""
    if isinstance(choice, str):
        return "<name>"
    return "<avoid>" if isinstance(choice, Mapping | Avoid) else None


KernelChoice = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[Avoid, Tag("<avoid>")],
    Discriminator(
        choice_kind,
        custom_error_type="kernel_choice",
        custom_error_message="expected the name of a kernel, or a mapping with `avoid`",
    ),
]
KernelKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.(decode|prefill))?$")]


class ApiKeys(Section):
    """Who may use the server."""

    file: Annotated[str, Field(min_length=1)]
    """One key per line; relative to the file this is written in. Keys are never inline."""


class Server(Section):
    """Where the server listens."""

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """Address to bind; `0.0.0.0` for all."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 1919
    """Port to bind; 0 takes a free one."""
    api_keys: ApiKeys | None = None
    """Keys that clients must send; `null`: everyone may."""
    log_file: Annotated[str, Field(min_length=1)] = "auto"
    """`auto`: a file in `$XDG_STATE_HOME/firmtoken/logs`. `off`: none. Or a path, relative to this file."""


class Profile(Section):
    """The whole profile, after `extends`, references and `--set`."""

    schema_version: Annotated[Literal["firmtoken/1"], Field(alias="schema")]
    """Version of this format."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Shown to people."""
    description: Annotated[str, Field(max_length=10_000)] = ""
    """For people."""
    hardware: Hardware
    """The machine: a path relative to this file, a shipped one (`ft:hardware/cpu`), or the mapping itself."""
    model: Model
    """What is served: a path relative to this file, a shipped one (`ft:models/tiny-moe`), or the mapping itself."""
    serving: Serving = Serving()
    """What the user needs."""
    cache: Cache = Cache()
    """The KV cache and the reuse of prefixes."""
    experts: Experts = Experts()
    """Where the routed experts live."""
    schedule: Schedule = Schedule()
    """How work is cut into steps."""
    streams: Streams = Streams()
    """How ops are spread over streams of the device."""
    graphs: Literal["auto", "off"] = "auto"
    """Whether decode steps are captured as CUDA graphs where the device can."""
    kernels: Annotated[
        Mapping[KernelKey, KernelChoice],
        AfterValidator(FrozenMap),
        PlainSerializer(dict),
        Field(default_factory=lambda: FrozenMap({})),
    ]
    """Op, or op and phase (`moe_gate_up.decode`): the kernel to use, or those to avoid."""
    server: Server = Server()
    """Where the server listens."""
