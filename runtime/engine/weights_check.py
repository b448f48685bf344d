"""The last check before warm-up: are the weights read right? Read once for a checkpoint and a plan, then remembered."""

import hashlib
import math
from pathlib import Path

import msgspec

from firmtoken import __version__
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.loading import content_digest
from firmtoken.runtime.engine.messages import KnownText
from firmtoken.runtime.engine.perplexity import holds, read_perplexity
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.runtime.weights.checkpoint import says_synthetic
from firmtoken.runtime.weights.files import write_note
from firmtoken.runtime.weights.preflight import Inventory
from firmtoken.schema.regular_file import read_regular


class WeightsReadWrong(HintedFault):
    """The model knows nothing of a text that it should know: what it was given are not its weights."""


def check_weights(
    plan: Plan, interpreter: Interpreter, inventory: Inventory, known: KnownText
) -> str:
    """A line for the log: what was found, or why nothing was read. Raises `WeightsReadWrong`."""
    count = len(known.token_ids)
    checkpoint = inventory.checkpoint
    if checkpoint.maker is not None or says_synthetic(checkpoint.folder):
        return "perplexity not read: the weights are synthetic, no text means anything to them"
    if not holds(plan, count):
        return (
            f"perplexity not read: the pool holds fewer than the {count} tokens of the known text"
        )
    file = Path(known.folder) / _key(plan, inventory, known) if known.folder else None
    remembered = _remembered(file)
    perplexity = _read(plan, interpreter, known) if remembered is None else remembered
    if not perplexity <= known.most:
        raise WeightsReadWrong(
            f"weights are not read right: perplexity {perplexity:.5g} on the {count} tokens of the known text,"
            f" at most {known.most:g} expected",
            "copy or download the checkpoint again; if it answers well elsewhere, raise `model.perplexity.max`"
            " or let `model.perplexity.text` name a text of the kind that it has learned",
        )
    if remembered is None and file is not None:
        write_note(file, msgspec.json.encode(perplexity))  # what cannot be written is read again
    how = f"at most {known.most:g}" if remembered is None else "remembered"
    return f"weights are read right: perplexity {perplexity:.5g} on {count} tokens of a known text ({how})"


def _read(plan: Plan, interpreter: Interpreter, known: KnownText) -> float:
    interpreter.faults.armed = False  # those of a test are for requests
    try:
        return read_perplexity(plan, interpreter, known.token_ids, known.counted)
    finally:
        interpreter.faults.armed = True


def _key(plan: Plan, inventory: Inventory, known: KnownText) -> str:
    """These files as they are now, this plan, this text, this program."""
    text = msgspec.json.encode((known.token_ids, known.counted, __version__))
    digest = hashlib.sha256(content_digest(plan, inventory).encode() + text)
    return f"{digest.hexdigest()}.json"


def _remembered(file: Path | None) -> float | None:
    """What was read before; a file that cannot be read or understood is none."""
    if file is None:
        return None
    try:
        found = msgspec.json.decode(read_regular(file), type=float)
    except (OSError, msgspec.DecodeError):
        return None
    return found if math.isfinite(found) else None
