"""The shipped profiles whose experts do not all fit, and those that fit, on a card too small for them."""

OFFLOAD = {
    "tiny-cpu": ("tiny-cpu",),
    "tiny-cpu in chunks": ("tiny-cpu", "schedule.prefill_chunk=128", "schedule.prefill_span=512"),
    "pro6000-minimax": ("pro6000-minimax",),
    "4090-minimax": ("4090-minimax",),
    "4090-minimax in chunks": ("4090-minimax", "schedule.prefill_chunk=2048"),
    "h200-minimax of 80 GiB": (
        "h200-minimax",
        "hardware.gpu.memory=80GiB",
        "hardware.host.memory=200GiB",
        "hardware.host.pinnable=180GiB",
    ),
    "4090-qwen of 12 GiB": ("4090-qwen", "hardware.gpu.memory=12GiB"),
    "4090-qwen3-30b of 11 GiB": ("4090-qwen3-30b", "hardware.gpu.memory=11GiB"),
    "4090-qwen3-30b of 12 GiB": ("4090-qwen3-30b", "hardware.gpu.memory=12GiB"),
}
"""Name -> profile and `--set` values; between them every family, one chunk, tile and wave, two waves, and several."""
QUICK = ("tiny-cpu in chunks", "pro6000-minimax")
"""One with linear layers and chunks, one with 62 layers: what CI walks where all would take minutes."""
