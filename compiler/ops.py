"""The closed list of ops (D13): what each reads and writes, by operand name.

A plan's step binds operands to values (`operands: {"x": "decode.h", ...}`); a kernel is called with exactly these
names as keywords. An operand that ends in `?` may be absent. Rows are the unit in which a launch is counted.

Legend: T rows of the launch, H hidden size, k experts per token, E experts, I expert width.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op: its name, operands, and what it is for."""

    name: str
    reads: tuple[str, ...] = ()
    """Operands whose old content matters."""
    writes: tuple[str, ...] = ()
    """Operands that get new content; one that is in `reads` too is updated in place."""
    weights: tuple[str, ...] = ()
    """Read-only operands, named by a weight row of the plan."""
    addresses: tuple[str, ...] = ()
    """Operands of which only the place (a range of expert slots) is used."""
    indices: tuple[str, ...] = ()
    """Numbers that say where in the loops of its program a launch stands; absent outside such a loop."""
    note: str
    """Shapes and meaning, one sentence or two."""


OPS = (
    Op(name="embed", writes=("hid",), weights=("table",), note="hid[T,H] = table[token id]"),
    Op(
        name="add_norm",
        reads=("hid", "y?"),
        writes=("hid?", "h?"),
        weights=("norm?",),
        note="hid += y where y is given; h[T,H] = rmsnorm(hid) * norm where h is given",
    ),
    Op(name="linear", reads=("x",), writes=("y",), weights=("w",), note="y[T,N] = x[T,K] w[N,K]^T"),
    Op(
        name="qk_norm_rope_kv",
        reads=("qkv", "kv"),
        writes=("q", "kv"),
        weights=("q_norm", "k_norm"),
        note="per-head norm and rotary on q and k; q[T,Hq*D]; k and v go to their token slots in kv",
    ),
    Op(
        name="row_norm_rope_kv",
        reads=("qkv", "kv"),
        writes=("q", "kv"),
        weights=("q_norm", "k_norm"),
        note="as qk_norm_rope_kv, with one norm over all heads of q and one over all of k",
    ),
    Op(
        name="attention",
        reads=("q", "qkv?", "kv"),
        writes=("o",),
        note="causal attention over the pages of each sequence; o[T,Hq*D], times sigmoid(gate of qkv) where given",
    ),
    Op(
        name="gdn",
        reads=("u", "conv_state", "recurrent_state"),
        writes=("o", "conv_state", "recurrent_state"),
        weights=("conv", "a_log", "dt_bias", "norm"),
        note="gated delta net on u = [qkv | z | b | a]; o[T,value dim], normed and gated; states in place",
    ),
    Op(
        name="route",
        reads=("h",),
        writes=("ids", "wts"),
        weights=("router",),
        note="ids[T,k] int32 and wts[T,k] fp32, renormalised; padded rows get id -1 and weight 0",
    ),
    Op(
        name="route_sigmoid",
        reads=("h",),
        writes=("ids", "wts"),
        weights=("router", "bias"),
        note="the k experts with the largest sigmoid(logit) + bias, weighted by their sigmoids over the sum of those k",
    ),
    Op(
        name="prescribe",
        reads=("ids",),
        writes=("ids",),
        weights=("routes",),
        note="ids[T,k] by position from routes[P,k], over what the router chose; padded rows keep -1",
    ),
    Op(
        name="resolve",
        reads=("ids?", "table"),
        writes=("map", "miss"),
        addresses=("staged",),
        indices=("wave",),
        note="map[E] expert -> slot and miss = [count, (expert, slot)...]; all, those in ids, or a wave of them",
    ),
    Op(
        name="admit",
        reads=("ids", "table", "lru"),
        writes=("slots", "table", "lru", "miss"),
        addresses=("cache", "overflow"),
        note="decode: slots[T,k] of the routed experts; misses get a victim's slot (overflow if held or none)",
    ),
    Op(
        name="fetch",
        reads=("miss", "bank"),
        writes=("staged?", "cache?", "overflow?"),
        note="copies the listed experts from the host bank to their slots",
    ),
    Op(
        name="moe_gate_up",
        reads=("x", "ids?", "slots?", "map?", "experts"),
        writes=("a", "shared_a?", "share?"),
        weights=("shared_gate_up?", "shared_gate?"),
        note="a[T*k,I] = silu(gate x) * (up x); experts addressed by ids, ids through map, or slots",
    ),
    Op(
        name="moe_down",
        reads=("a", "ids?", "slots?", "map?", "experts", "rows?", "shared_a?", "share?"),
        writes=("rows", "s?"),
        weights=("shared_down?",),
        indices=("block",),
        note="rows[T*k,H] = down a; a later wave keeps the rows of the earlier ones; a block has some of the H columns",
    ),
    Op(
        name="shared_expert",
        reads=("h",),
        writes=("s",),
        weights=("gate_up", "down", "gate"),
        note="s[T,H] = sigmoid(gate h) * down(silu(gate h) * up h)",
    ),
    Op(
        name="combine",
        reads=("rows", "wts", "s?", "hid"),
        writes=("hid",),
        indices=("block",),
        note="hid += sum over k of wts * rows, + s where given; a block adds to its own columns only",
    ),
    Op(
        name="snapshot",
        reads=("conv_state", "recurrent_state"),
        writes=("snaps",),
        note="one layer's states of the listed slots to snapshot slots on the host",
    ),
    Op(
        name="restore",
        reads=("snaps?",),
        writes=("conv_state", "recurrent_state"),
        note="one layer's states from snapshot slots, or zero where there are none; live and shadow slot alike",
    ),
    Op(
        name="copy",
        reads=("source",),
        writes=("target",),
        note="the listed rows of source to rows of target",
    ),
    Op(name="mark", note="nothing; carries drops and events"),
    Op(
        name="head",
        reads=("last",),
        writes=("logits",),
        weights=("norm", "w"),
        note="logits[S,V] = rmsnorm(last) w^T",
    ),
    Op(
        name="sample",
        reads=("logits",),
        writes=("tokens",),
        note="tokens[S] by each sequence's sampling, D19",
    ),
)

SHARED_OPERANDS = {
    "moe_gate_up": ("shared_gate_up", "shared_gate", "shared_a", "share"),
    "moe_down": ("shared_down", "shared_a", "share", "s"),
}
"""What these ops have beside their own operands where they do the shared expert too: only of kernels that take it."""

OP_NAMES = tuple(op.name for op in OPS)


def find_op(name: str) -> Op:
    """The op called `name`; raises `KeyError` for a name outside the closed list."""
    for op in OPS:
        if op.name == name:
            return op
    raise KeyError(name)
