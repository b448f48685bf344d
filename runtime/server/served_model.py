"""The model's text side: tokenizer, chat template, dialect and defaults, read from its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from firmtoken.runtime.dialects.chatml import ChatTemplate
from firmtoken.runtime.dialects.dialect import Dialect
from firmtoken.runtime.dialects.registry import UnknownDialect, find_dialect
from firmtoken.runtime.dialects.thoughts import TAGS as THOUGHT_TAGS
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.generation_config import (
    GenerationDefaults,
    load_generation_defaults,
)
from firmtoken.runtime.server.tokenizer import (
    LoadedTokenizer,
    Tokenizer,
    load_tokenizer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """How this model's text is made."""

    tokenizer: Tokenizer
    template: ChatTemplate
    takes_tools: bool
    """The template has a place for them."""
    dialect: Dialect
    defaults: GenerationDefaults


def load_served_model(
    folder: Path, *, dialect: str, vocab_size: int, now: Callable[[], datetime]
) -> ServedModel:
    """Read and check the folder; faults are `ModelFolderFault`."""
    try:
        found = find_dialect(dialect)
    except UnknownDialect as error:
        hint = "correct `model.dialect`" if error.hint is None else f"`model.dialect`: {error.hint}"
        raise ModelFolderFault(folder, str(error), hint=hint) from error
    loaded = load_tokenizer(folder, now=now, tags=(*THOUGHT_TAGS, *found.call_tags))
    if loaded.template is None:
        raise ModelFolderFault(
            folder / "chat_template.jinja",
            "no such file, and `tokenizer_config.json` has no `chat_template`",
            hint="copy the checkpoint's own template there: without it a chat has no form",
        )
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
    _check_end_of_turn(folder, loaded, defaults, found)
    return ServedModel(
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        takes_tools=loaded.template.takes_tools(),
        dialect=found,
        defaults=defaults,
    )


def _check_end_of_turn(
    folder: Path, loaded: LoadedTokenizer, defaults: GenerationDefaults, dialect: Dialect
) -> None:
    """A chat whose answers do not stop at the end of their turn would go on to write the user's."""
    end = loaded.tokenizer.token_id(dialect.end_of_turn)
    if end in defaults.stop_token_ids:
        return
    if end is None:
        raise ModelFolderFault(
            folder / "tokenizer.json",
            f"no token `{dialect.end_of_turn}`, which ends a turn in dialect `{dialect.name}`",
            hint="correct `model.dialect`, or the tokenizer is of another model",
        )
    raise ModelFolderFault(
        folder / "generation_config.json",
        f"`eos_token_id` lacks {end} (`{dialect.end_of_turn}`), which ends a turn in dialect `{dialect.name}`",
        hint=f"add {end} to `eos_token_id`",
    )
