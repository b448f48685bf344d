"""The model's text side: tokenizer, chat template, dialect and defaults, read from its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from firmtoken.runtime.dialects.chatml import ChatTemplate
from firmtoken.runtime.dialects.dialect import Dialect
from firmtoken.runtime.dialects.registry import UnknownDialect, find_dialect
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.generation_config import (
    GenerationDefaults,
    load_generation_defaults,
)
from firmtoken.runtime.server.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """How this model's text is made."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    dialect: type[Dialect]
    defaults: GenerationDefaults


def load_served_model(
    folder: Path, *, dialect: str, vocab_size: int, now: Callable[[], datetime]
) -> ServedModel:
    """Read and check the folder; faults are `ModelFolderFault`."""
    loaded = load_tokenizer(folder, now=now)
    defaults = load_generation_defaults(folder)
    # An id beyond the embedding's rows would be read out of bounds by the engine.
    if loaded.tokenizer.vocab_size > vocab_size:
        raise ModelFolderFault(
            folder / "tokenizer.json",
            f"{loaded.tokenizer.vocab_size} tokens, but the model has {vocab_size} rows",
            hint="the tokenizer is of another model, or `model.geometry.vocab_size` is wrong",
        )
    for token_id in defaults.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise ModelFolderFault(
                folder / "generation_config.json",
                f"`eos_token_id` has {token_id}, but the model has {vocab_size} rows",
                hint="the file is of another model",
            )
    try:
        found = find_dialect(dialect)
    except UnknownDialect as error:
        raise ModelFolderFault(folder, str(error), hint="correct `model.dialect`") from error
    return ServedModel(
        tokenizer=loaded.tokenizer, template=loaded.template, dialect=found, defaults=defaults
    )
