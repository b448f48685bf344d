"""The text by which the engine sees whether a model's weights are read right, as tokens."""

import re
from collections.abc import Mapping
from pathlib import Path

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.engine.messages import KnownText
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.server.folder import ModelFolderFault, read_text
from firmtoken.runtime.server.report import state_folder
from firmtoken.runtime.server.tokenizer import Tokenizer
from firmtoken.schema.model import Perplexity
from firmtoken.schema.references import shipped_folder

BUNDLED = "texts/alice.txt"
"""The opening of Alice's Adventures in Wonderland (Lewis Carroll, 1865), in the public domain."""
TOKENS = 512
MAX_CHARACTERS = 128 * TOKENS
"""Of the file; a tokenizer takes minutes for a large one, and few tokens have so many."""
COUNTED = re.compile("[⟪⟫]")
"""Around the parts of a text that count, where not all of it does: a model may have learned answers only."""


def known_text(
    perplexity: Perplexity, tokenizer: Tokenizer, environ: Mapping[str, str]
) -> KnownText:
    """The first `TOKENS` tokens of the profile's text; raises `Failure`."""
    path = Path(perplexity.text) if perplexity.text != "auto" else shipped_folder() / BUNDLED
    try:
        pieces = COUNTED.split(read_text(path)[:MAX_CHARACTERS])
    except ModelFolderFault as error:
        raise Failure(
            f"`model.perplexity.text`: {error}",
            exit_code=FAILED,
            hint="name a text of at least a few hundred words, or `auto`",
        ) from error
    token_ids: list[int] = []
    counted: list[bool] = []
    for number, piece in enumerate(pieces):
        found = tokenizer.encode(piece)
        token_ids += found
        counted += [len(pieces) == 1 or number % 2 == 1] * len(found)
    if not any(counted[1:TOKENS]):
        raise Failure(
            f"`model.perplexity.text`: `{path}` has nothing that counts",
            exit_code=WRONG,
            hint="at least two tokens, outside of ⟪⟫ if there are none, else inside",
        )
    return KnownText(
        token_ids=token_ids[:TOKENS],
        counted=counted[:TOKENS],
        most=perplexity.max,
        folder=_folder(environ),
    )


def _folder(environ: Mapping[str, str]) -> str:
    try:
        return str(state_folder(environ) / "perplexity")
    except RuntimeError:  # a user without a home
        return ""
