"""Device memory that kernels need beside their operands: each kind once, however many kernels share it."""

from tests.compiler.plan_checker_model import Json, up
from tests.compiler.plan_checker_split import Bench

MIB = 2**20
ARRAY = 16
"""An array of a workspace begins at a multiple of it."""
WORKSPACES = {
    ("attention", "flashinfer_fa2"): "flashinfer",
    ("attention", "flashinfer_fa3"): "flashinfer",
    ("attention", "triton_prefill"): "prefill_parts",
    ("attention", "triton_prefill_fp8"): "mixer_tile",
    ("attention", "triton_split_kv"): "split_kv",
    ("linear", "cublas_bf16"): "cublas",
    ("linear", "scaled_mm_tensorwise"): "cublas",
    ("linear", "scaled_mm_rowwise"): "cublas",
    ("linear", "triton_nvfp4_tiles"): "operand_order",
    ("moe_gate_up", "triton_grouped_nvfp4"): "operand_order",
    ("moe_down", "triton_grouped_nvfp4"): "operand_order",
    ("shared_expert", "triton_nvfp4_tiles"): "operand_order",
    ("shared_expert", "triton_nvfp4"): "shared_expert",
    ("gdn", "triton_chunk"): "mixer_tile",
    ("head", "triton_bf16"): "head",
    ("route", "triton"): "route",
    ("route_sigmoid", "triton"): "route",
    ("sample", "triton"): "sample",
}
"""Op and kernel -> what it needs."""
NO_SPACE = ("cublas", "spills")
"""Allocated by the library and by the driver; all others are given to a kernel as its `workspace`."""


def workspace_of(kernel: Json) -> str:
    """What a kernel of a plan needs; nothing if it needs none."""
    return WORKSPACES.get((kernel["op"], kernel["kernel"]), "")


def workspaces(bench: Bench) -> dict[str, int]:
    """Bytes of each that the plan's kernels need (hardware.md 1.3, prototype.md 2.1 and 3), and of their spills."""
    plan, asked = bench.plan, bench.asked
    gpu, shape = asked["hardware"]["gpu"], asked["model"]["geometry"]
    if gpu is None:
        return {}
    names = {workspace_of(row) for row in plan["kernels"]} - {""}
    heads, kv_heads, width = shape["num_q_heads"], shape["num_kv_heads"], shape["head_dim"]
    blocks = -(-2 * gpu["sms"] // kv_heads)
    tile = 128 if width < 256 else 64
    requests, shared = bench.requests, shape["shared_intermediate_size"]
    sizes = {
        "flashinfer": up(heads * blocks * tile * width * 4 + 16 * MIB, 2 * MIB),
        "cublas": (32 if float(gpu["compute_capability"]) >= 9 else 8) * MIB,
        "split_kv": heads * max(blocks, requests) * (width + 2) * 4,
        "prefill_parts": attention_parts(bench),
        "mixer_tile": mixer_tile(bench),
        "operand_order": _operand_order(bench),
        # Scores in fp32 and one counter; normed rows in bf16; the inner rows in bf16 and a share in fp32.
        "route": up(requests * 4 * shape["num_experts"], ARRAY) + requests * 4,
        "head": requests * 2 * shape["hidden_size"],
        "shared_expert": up(requests * 2 * shared) + requests * 4,
        "sample": _sample(requests, shape["vocab_size"]),
    }
    threads = 2048 if gpu["compute_capability"] in ("8.0", "9.0", "10.0", "10.3") else 1536
    spilled = gpu["sms"] * threads * max(row["local_bytes"] for row in plan["kernels"])
    return {**{name: sizes[name] for name in names}, **({"spills": spilled} if spilled else {})}


def attention_parts(bench: Bench) -> int:
    """A tile of 128 rows for each multiprocessor: outputs, maximum and sum of a row in fp32."""
    return int(
        bench.asked["hardware"]["gpu"]["sms"]
        * 128
        * (bench.asked["model"]["geometry"]["head_dim"] + 2)
        * 4
    )


def mixer_tile(bench: Bench) -> int:
    """Keys and values of a sequence, up to 32,768 tokens, in bf16 behind the parts; linear layers lend their space."""
    shape, context = bench.asked["model"]["geometry"], bench.asked["serving"]["context"]
    longest = shape["max_position_embeddings"] if isinstance(context, str) else context
    tokens = up(min(32_768, longest), 64)
    own = 0 if shape["linear"] else tokens * 2 * shape["num_kv_heads"] * shape["head_dim"] * 2
    return max(attention_parts(bench) + own, _gdn_chunks(bench))


def _gdn_chunks(bench: Bench) -> int:
    """States between chunks in bf16; per row q, k, one thing as wide as keys, one as values; sums of decays in fp32."""
    linear = bench.asked["model"]["geometry"]["linear"]
    if linear is None:
        return 0
    rows, heads = bench.plan["schedule"]["mixer_tile"], linear["num_value_heads"]
    key, value = linear["key_head_dim"], linear["value_head_dim"]
    states = (-(-rows // 64) + 2 * bench.requests) * heads * key * value
    wide = rows * (2 * linear["num_key_heads"] * key + heads * (key + value))
    return 2 * int(states + wide) + 4 * int(rows * heads)


def _operand_order(bench: Bench) -> int:
    """Rows of a launch in bf16; with those of experts, places of pairs and tiles, or what the shared one hands on."""
    shape, schedule = bench.asked["model"]["geometry"], bench.plan["schedule"]
    chunk, experts = schedule["moe_chunk"], shape["num_experts"]
    pairs = chunk * shape["num_experts_per_token"]
    tiles = pairs // 16 + min(experts + 1, pairs)
    bins = next(1 << power for power in range(32) if 1 << power >= experts + 2)
    of_pairs = up(4 * pairs, ARRAY) + 4 * (3 * tiles + 1 + 2 * -(-pairs // 256) * bins)
    of_shared = chunk * (2 * shape["shared_intermediate_size"] + 4)
    mixer = schedule["mixer_tile"] * max(
        shape["hidden_size"], shape["num_q_heads"] * shape["head_dim"]
    )
    return up(max(2 * chunk * shape["hidden_size"] + max(of_pairs, of_shared), 2 * mixer))


def _sample(requests: int, vocab: int) -> int:
    """Of 2,048 logits the largest and its place, and for each of 16 digits how many and their sum, 8 bytes each; of a
    row eight numbers of 8 bytes."""
    chunks = -(-vocab // 2048)
    return 2 * up(requests * chunks * 4, ARRAY) + requests * (chunks * 16 * 2 * 8 + 64)
