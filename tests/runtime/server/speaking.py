"""Served models that speak a dialect: the test tokenizer with the family's tags, and its template."""

import json
import shutil
from datetime import datetime
from pathlib import Path

import tokenizers
from tests.runtime.server.conftest import VOCAB
from tokenizers import AddedToken

from firmtoken.runtime.dialects.registry import find_dialect
from firmtoken.runtime.server.served_model import ServedModel, load_served_model

TEMPLATES = Path(__file__).parents[1] / "dialects" / "templates"


def speaking(model_folder: Path, folder: Path, name: str, *, special_tags: bool) -> ServedModel:
    """A model of this dialect in `folder`; `special_tags`: the tags of calls are special tokens there."""
    shutil.copytree(model_folder, folder)
    dialect = find_dialect(name)
    path = folder / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    tags = [AddedToken(tag, special=special_tags) for tag in ("</think>", *dialect.call_tags)]
    (inner.add_special_tokens if special_tags else inner.add_tokens)(tags)
    inner.add_special_tokens([AddedToken(dialect.end_of_turn, special=True)])
    inner.save(str(path))
    end = inner.token_to_id(dialect.end_of_turn)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 258]}))
    shutil.copy(TEMPLATES / f"{name}.jinja", folder / "chat_template.jinja")
    return load_served_model(
        folder, dialect=name, vocab_size=VOCAB, now=lambda: datetime(2026, 1, 2)
    )
