"""One model family each, as data and lowering; knows nothing of weights in memory."""

from firmtoken.compiler.architectures import qwen3_5_moe
from firmtoken.compiler.family import Family

FAMILIES: tuple[Family, ...] = (qwen3_5_moe.FAMILY,)
