"""One model family each, as data and lowering; knows nothing of weights in memory."""

from firmtoken.compiler.architectures import minimax_m2, qwen3_5_moe, qwen3_moe
from firmtoken.compiler.family import Family

FAMILIES: tuple[Family, ...] = (qwen3_5_moe.FAMILY, qwen3_moe.FAMILY, minimax_m2.FAMILY)
