"""Programs as templates: steps, loops, blocks and yields, and the names by which they refer to values (D5).

A reference is `name`, `name[i]` or `name[i,j]`; an index is `var`, `int`, `var+int`, `var%int` or `(var+int)%int`.
`unroll` in `unroll.py` turns a template into the flat list that the runtime walks and the checker reads.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch. All references; what a value is, `buffers[]` says."""

    op: str
    kernel: str
    stream: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    """Events that must have happened before this launch."""
    records: tuple[str, ...] = ()
    """Events that happen when this launch is done."""
    holds: tuple[str, ...] = ()
    """Values that no decode step may change from here on."""
    drops: tuple[str, ...] = ()
    """Values whose hold ends here."""
    addresses: tuple[str, ...] = ()
    """Values whose place is named (slot numbers are handed out) while their bytes stay untouched."""
    rows: str
    """Unit of the launch: `tile`, `tokens` (of the chunk), `pairs`, `sequences` or `1`."""
    operands: dict[str, str]
    """Operand name -> reference; each is one of `reads`, `writes`, `weights` or `addresses`."""
    indices: dict[str, str] = field(default_factory=dict)
    """Keyword -> index: where in the loops it stands, for a kernel whose work depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`body` for each value of `loop` in 0..count-1; count is a bound of the program (`layers`, `chunks`, ...)."""

    loop: str
    count: str
    body: "Body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The block of this name."""

    block: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOf:
    """The block named by the kind of layer `l`: `linear` or `full`, then the suffix."""

    block_of: str
    suffix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """`body` where the condition holds: `index < limit`, `index == limit` (bound, int, variable), `kind == name`."""

    when: str
    body: "Body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """A point where a step of the named program may run."""

    program: str


Item = Step | Loop | Block | BlockOf | When | Yield
Body = tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A template. Sizes are rows for which it is captured or bucketed; empty = any size up to the bounds."""

    captured: bool
    closed: bool
    """Every side stream is joined before the end: needed of a captured program."""
    sizes: tuple[int, ...]
    bounds: dict[str, int]
    """Largest legal count of `layers`, `chunks`, `tiles`; the exact one of `waves` or `columns`, if there are any."""
    entry_waits: tuple[str, ...]
    body: Body
    blocks: dict[str, Body]


@dataclass(frozen=True, slots=True)
class Value:
    """A reference with its indices bound."""

    name: str
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{','.join(map(str, self.index))}]" if self.index else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStep:
    """A step with every reference bound, and where in the loops it stands."""

    step: Step
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    weights: tuple[Value, ...]
    waits: tuple[Value, ...]
    records: tuple[Value, ...]
    holds: tuple[Value, ...]
    drops: tuple[Value, ...]
    operands: dict[str, Value]
    indices: dict[str, int]
    at: dict[str, int]
    """Loop variables: `l`, `c`, `t`, `w`, `b`."""

    @property
    def continues(self) -> bool:
        """Whether it adds rows to values of which others were written before: a tile, or rows that a span gathers."""
        gathers = self.step.op == "copy" and self.at.get("c", 0) > 0
        return gathers or self.at.get("t", 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundYield:
    """A yield and where it stands."""

    program: str
    at: dict[str, int]


Flat = tuple[BoundStep | BoundYield, ...]
