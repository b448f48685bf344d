"""prescribe(conversation): experts by position, over what the router has chosen (compiler/prescribed_routes.py).

ids[T,k] = routes[P,k] at row (position + conversation * its sequence's place in the launch) mod P; int32 both. Rows
from batch.real_rows on keep their -1, and wts stay the router's.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="prescribe",
        name="torch",
        entry="firmtoken.runtime.kernels.prescribe.reference:prescribe",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="prescribe",
        name="triton",
        entry="firmtoken.runtime.kernels.prescribe.triton_rows:prescribe",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="one launch a layer, inside the graph; for measuring only",
        builds="firmtoken.runtime.kernels.prescribe.rows:prescribe_builds",
    ),
)
