"""A checkpoint's generation_config.json: which tokens end an answer, and how to sample when nobody says."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from firmtoken.runtime.server.folder import ModelFolderFault, read_json
from firmtoken.runtime.server.wire import Share, Temperature, TokenId, TopK


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """What a request gets that says nothing (D19)."""

    stop_token_ids: tuple[int, ...]
    temperature: float
    top_p: float
    top_k: int
    """0 keeps all."""
    min_p: float


class _GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    eos_token_id: TokenId | list[TokenId]
    do_sample: bool | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None


def load_generation_defaults(folder: Path) -> GenerationDefaults:
    """Defaults of the checkpoint in `folder`; a missing sampling value is transformers' own neutral one."""
    path = folder / "generation_config.json"
    try:
        config = msgspec.convert(read_json(path), _GenerationConfig)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ModelFolderFault(
            path,
            str(error),
            hint="it needs what a request may say: `eos_token_id` from 0, `temperature` 0 to 100,"
            " `top_p` and `min_p` 0 to 1, `top_k` from -1",
        ) from error
    stops = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    greedy = config.do_sample is False and config.temperature is None
    return GenerationDefaults(
        stop_token_ids=tuple(stops),
        temperature=0.0 if greedy else _or(config.temperature, 1.0),
        top_p=_or(config.top_p, 1.0),
        top_k=max(0, config.top_k) if config.top_k is not None else 0,
        min_p=_or(config.min_p, 0.0),
    )


def _or(value: float | None, neutral: float) -> float:
    return neutral if value is None else value
