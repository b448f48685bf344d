"""`choose_slot_format`: how an expert lies in its slot: as the checkpoint has it on a GPU, in fp32 on the CPU."""

from collections.abc import Sequence

from firmtoken.compiler.cards import KernelCard
from firmtoken.schema.profile import Profile


def choose_slot_format(profile: Profile, cards: Sequence[KernelCard]) -> str:
    """`fp32`, `bf16` or `nvfp4`; a MoE kernel asked for by name brings the format that it takes."""
    if profile.hardware.cpu is None:
        return profile.model.quantization.experts
    asked = {
        wish
        for key, wish in profile.kernels.items()
        if key.partition(".")[0] == "moe_gate_up" and isinstance(wish, str)
    }
    formats = [card.formats for card in cards if card.op == "moe_gate_up" and card.name in asked]
    return formats[0][0] if formats else "fp32"
