"""Which files of a repository make a checkpoint: what is read when it is served, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

from firmtoken.runtime.weights.checkpoint import INDEX, SINGLE, indexed_files
from firmtoken.runtime.weights.declared import CONFIG, SEPARATE
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.hub import HubFile, Repository

DESCRIPTION = (CONFIG, SEPARATE, "generation_config.json", INDEX)
"""Small files that say what the weights are."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
OTHER_REPOSITORY = "choose a repository that holds a whole checkpoint in safetensors files"

Shards = dict[str, list[str] | None]
"""File -> the tensors that count in it; None is all."""


def described(repository: Repository) -> tuple[HubFile, ...]:
    """The files without which nothing can be said; raises `LoadError` if `config.json` is none of them."""
    if CONFIG not in repository.files:
        raise _lacks(repository, f"`{CONFIG}`")
    return _present(repository, DESCRIPTION)


def shards(repository: Repository, folder: Path) -> Shards:
    """The files of weights, as the index in `folder` says, or the only one; raises `LoadError`."""
    if INDEX in repository.files:
        found: Shards = indexed_files(folder / INDEX)
        for file in found:
            if file not in repository.files:
                raise _lacks(repository, f"`{file}`, which `{INDEX}` names")
        return found
    if SINGLE in repository.files:
        return {SINGLE: None}
    raise _lacks(repository, f"`{INDEX}` or `{SINGLE}`")


def whole(repository: Repository, weights: Shards) -> tuple[HubFile, ...]:
    """Every file that serving reads: small ones first, so that a fault in them is met early."""
    small = _present(repository, (*DESCRIPTION, *TOKENIZER))
    return (*small, *(repository.files[file] for file in sorted(weights)))


def _present(repository: Repository, names: Sequence[str]) -> tuple[HubFile, ...]:
    return tuple(repository.files[name] for name in names if name in repository.files)


def _lacks(repository: Repository, expected: str) -> LoadError:
    return LoadError(
        file=f"{repository.name} at {repository.commit}",
        expected=expected,
        found="no such file",
        hint=OTHER_REPOSITORY,
    )
