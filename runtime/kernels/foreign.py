"""Cards of kernels that users ask about and FirmToken does not call, each with the reason on every capability.

A reason is the hazard that holds there, else the capability's own line, else `not_called` (hardware.md 2 and 3).
"""

from firmtoken.compiler.cards import KernelCard, above, below, foreign_gpu_card
from firmtoken.runtime.kernels.linear import NO_FP8

TWO_OPS = "does both products of the experts in one launch, by expert and not by slot, so no expert could be fetched"
ROUNDS = "rounds activations to 4 bits; the plan's kernel reads 4-bit weights and keeps 16-bit activations"
MARLIN = (
    "vLLM's and sglang's kernel wants weights repacked into tiles of its own with one global scale, and vLLM's wheel "
    "pins another torch; the Triton kernel reads experts as the checkpoint has them"
)
GLUON = "FreeToken's own kernel, which wants Triton 3.8 exactly"
NO_FP4 = (
    "this card has no FP4 units: they begin with compute capability 10.0, on desktop cards 12.0"
)
SM_100 = "its binaries are for compute capability 10.0 and 10.3 only"
SM_12X = "for compute capability 12.0 and 12.1 only"


def moe_cards(op: str) -> tuple[KernelCard, ...]:
    """Fused MoE kernels, as alternatives to one of the two ops that the plan has."""
    return (
        foreign_gpu_card(
            op=op,
            name="marlin",
            formats=("nvfp4",),
            not_called=MARLIN,
            excluded=(
                above(
                    (9, 9),
                    "FreeToken offers it below compute capability 10.0 only, vLLM as its last choice",
                ),
            ),
            hazards=("H-09", "H-19"),
        ),
        foreign_gpu_card(
            op=op,
            name="flashinfer_fp4_cutlass",
            formats=("nvfp4",),
            not_called=TWO_OPS,
            hazards=("H-07", "H-10", "H-11", "H-12", "H-16"),
        ),
        foreign_gpu_card(
            op=op,
            name="flashinfer_b12x",
            formats=("nvfp4",),
            not_called="does both products of the experts in one launch, and raises unless it was warmed for each size",
            excluded=(below((12, 0), SM_12X),),
            hazards=("H-07", "H-14", "H-17"),
        ),
        foreign_gpu_card(
            op=op,
            name="flashinfer_trtllm_gen",
            formats=("nvfp4",),
            not_called=TWO_OPS,
            excluded=(above((10, 9), f"{SM_100}, and its Python check lets this card past it"),),
            hazards=("H-07", "H-13"),
        ),
        foreign_gpu_card(
            op=op,
            name="flashinfer_cute_dsl",
            formats=("nvfp4",),
            not_called=TWO_OPS,
            excluded=(above((10, 9), "for compute capability 10.0, 10.3 and 10.7 only"),),
            hazards=("H-07",),
        ),
        foreign_gpu_card(
            op=op,
            name="gluon_w4a4",
            phases=("prefill",),
            formats=("nvfp4",),
            not_called=f"{GLUON} and static input scales in the checkpoint",
            excluded=(below((12, 0), NO_FP4), above((12, 0), "for compute capability 12.0 only")),
            hazards=("H-16",),
        ),
        foreign_gpu_card(
            op=op,
            name="triton_dot_scaled",
            formats=("nvfp4",),
            not_called=ROUNDS,
            excluded=(below((10, 0), NO_FP4),),
            hazards=("H-38", "H-16"),
        ),
    )


LINEAR_NVFP4 = (
    foreign_gpu_card(
        op="linear",
        name="marlin",
        formats=("nvfp4",),
        not_called=MARLIN,
        hazards=("H-19",),
    ),
    foreign_gpu_card(
        op="linear",
        name="scaled_mm_nvfp4",
        formats=("nvfp4",),
        not_called=ROUNDS,
        excluded=(below((10, 0), NO_FP4),),
        hazards=("H-16",),
    ),
    foreign_gpu_card(
        op="linear",
        name="flashinfer_mm_fp4",
        formats=("nvfp4",),
        not_called=ROUNDS,
        hazards=("H-07", "H-16"),
    ),
    foreign_gpu_card(
        op="linear",
        name="flashinfer_b12x",
        formats=("nvfp4",),
        not_called=ROUNDS,
        excluded=(below((12, 0), SM_12X),),
        hazards=("H-07", "H-15", "H-16"),
    ),
    foreign_gpu_card(
        op="linear",
        name="flashinfer_trtllm",
        formats=("nvfp4",),
        not_called=ROUNDS,
        excluded=(above((10, 9), "for compute capability 10.0, 10.3 and 10.7 only"),),
        hazards=("H-07",),
    ),
    foreign_gpu_card(
        op="linear",
        name="flashinfer_bf16_fp4",
        formats=("nvfp4",),
        not_called="keeps 16-bit activations as the plan's kernel does, and that one runs on every card",
        excluded=(below((12, 0), SM_12X),),
        hazards=("H-07",),
    ),
    foreign_gpu_card(
        op="linear",
        name="gluon_gemv",
        phases=("decode",),
        formats=("nvfp4",),
        not_called=GLUON,
        excluded=(
            below((12, 0), "for compute capability 12.0 only"),
            above((12, 0), "for compute capability 12.0 only"),
        ),
    ),
)

LINEAR_FP8 = (
    foreign_gpu_card(
        op="linear",
        name="scaled_mm_blockwise",
        formats=("fp8",),
        not_called="the checkpoint's FP8 has one scale a tensor, so scales for blocks gain nothing",
        hazards=("H-05",),
    ),
    foreign_gpu_card(
        op="linear",
        name="triton_scaled_fp8",
        formats=("fp8",),
        not_called="rounds activations to FP8 as `scaled_mm_tensorwise` does with the vendor's kernel",
        hazards=("H-06",),
    ),
    foreign_gpu_card(
        op="linear",
        name="flashinfer_mm_fp8",
        formats=("fp8",),
        not_called="calls the vendor's product that `scaled_mm_tensorwise` reaches without it",
        excluded=(below((8, 9), NO_FP8),),
    ),
    foreign_gpu_card(
        op="linear",
        name="deep_gemm",
        formats=("fp8",),
        not_called="its scales are for blocks, the checkpoint's FP8 has one a tensor",
        excluded=(
            below((9, 0), "its kernels begin with compute capability 9.0"),
            above((10, 9), "its kernels are for compute capability 9.0 and 10.x only"),
        ),
    ),
)

ATTENTION = (
    foreign_gpu_card(
        op="attention",
        name="flashinfer_xqa",
        phases=("decode",),
        formats=("bf16", "fp8"),
        not_called="the Triton kernel does the same on every card, without building a module at first use",
        excluded=(
            below((9, 0), "compiled for compute capability 9.0, 12.0 and 12.1 only"),
            above((12, 1), "compiled for compute capability 9.0, 12.0 and 12.1 only"),
        ),
        hazards=("H-20",),
    ),
    foreign_gpu_card(
        op="attention",
        name="flashinfer_decode",
        phases=("decode",),
        formats=("bf16", "fp8"),
        not_called="wants a plan call on the host before each step, outside the graph",
        hazards=("H-23",),
    ),
    foreign_gpu_card(
        op="attention",
        name="flashinfer_trtllm_gen",
        formats=("bf16", "fp8"),
        not_called="FA2 runs on every card that a plan is for",
        excluded=(below((10, 0), SM_100), above((10, 9), SM_100)),
    ),
    foreign_gpu_card(
        op="attention",
        name="flash_attn_2",
        formats=("bf16",),
        not_called="takes pages of a multiple of 256 tokens and no FP8, and its wheels lag behind torch",
    ),
    foreign_gpu_card(
        op="attention",
        name="flash_attn_4",
        formats=("bf16",),
        not_called="`flashinfer_fa3` does the same on this card",
        excluded=(above((11, 9), "not merged for this card yet (flash-attention#2634)"),),
        hazards=("H-29",),
    ),
    foreign_gpu_card(
        op="attention",
        name="sgl_fa3",
        formats=("bf16", "fp8"),
        not_called="the same FA3 as `flashinfer_fa3`, from a package that brings more of its own",
        excluded=(
            below((9, 0), "for compute capability 9.0 only"),
            above((9, 0), "for compute capability 9.0 only, and raises on this one"),
        ),
    ),
)

REST = (
    foreign_gpu_card(
        op="gdn",
        name="fla_triton",
        formats=("bf16", "fp32"),
        not_called="the Triton kernels of the plan do the same with one fixed configuration",
        hazards=("H-33", "H-34", "H-35"),
    ),
    foreign_gpu_card(
        op="gdn",
        name="flashinfer_gdn",
        formats=("bf16", "fp32"),
        not_called="its limits differ by card (heads of 128, CUDA 13 on 12.0); one Triton kernel serves all of them",
        excluded=(
            below(
                (9, 0),
                "its decode begins with compute capability 9.0; prefill for 8.x came with flashinfer 0.7",
            ),
        ),
    ),
    foreign_gpu_card(
        op="sample",
        name="flashinfer_sampling",
        formats=("bf16", "fp32"),
        not_called="draws from a generator of its own; here a draw depends on seed and position only",
    ),
    foreign_gpu_card(
        op="fetch",
        name="copy_engine_batch",
        phases=("prefill",),
        formats=("bf16", "nvfp4"),
        not_called="wants the list of missing experts on the host, which would wait for the device once a layer",
        hazards=("H-77",),
    ),
)

FOREIGN: tuple[KernelCard, ...] = (
    *LINEAR_NVFP4,
    *LINEAR_FP8,
    *ATTENTION,
    *moe_cards("moe_gate_up"),
    *moe_cards("moe_down"),
    *REST,
)
