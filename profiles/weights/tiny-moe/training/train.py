"""Trains tiny-moe for a number of seconds; the last part runs on weights rounded to their stored formats."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

import conversation
import evaluate
import quantize
import rows
import torch
from network import Network
from optimizer import Masters
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen3_5MoeForCausalLM
from wordnet import load_entries

BALANCE = 0.003
LARGEST_PIECE = 15_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Rates over the share of the whole training that is done: warm-up, constant, linear to 2 %."""

    matrix_rate: float
    other_rate: float
    decay_from: float
    rounded_from: float
    first: float
    last: float
    """This run's part of the whole."""

    def progress(self, share_of_run: float) -> float:
        return self.first + (self.last - self.first) * share_of_run

    def factor(self, progress: float, step: int) -> float:
        if progress > self.decay_from:
            left = (1 - progress) / (1 - self.decay_from)
            return 0.02 + 0.98 * max(left, 0.0)
        return min(1.0, (step + 1) / 200)


def main() -> None:
    arguments = _parse()
    schedule = Schedule(
        matrix_rate=arguments.matrix_rate,
        other_rate=arguments.other_rate,
        decay_from=arguments.decay_from,
        rounded_from=arguments.rounded_from,
        first=arguments.first,
        last=arguments.last,
    )
    began = time.monotonic()
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(arguments.init).to(device, torch.bfloat16)
    if arguments.polish:
        model.load_state_dict(evaluate.dequantized(arguments.polish))
    masters = Masters(model)
    steps = 0
    if arguments.resume and arguments.resume.exists():
        saved = torch.load(arguments.resume, map_location=device)
        masters.load(saved["masters"])
        steps = saved["steps"]
        masters.publish(rounded=False)
    steps = train(model, masters, schedule, arguments, began, steps)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_pieces(
        {name: value.to(torch.bfloat16) for name, value in masters.values.items()}, arguments.out
    )
    if arguments.resume:
        arguments.resume.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"masters": masters.state(), "steps": steps}, arguments.resume)
    print(f"saved after {time.monotonic() - began:.0f} s", flush=True)


def train(
    model: Qwen3_5MoeForCausalLM,
    masters: Masters,
    schedule: Schedule,
    arguments: argparse.Namespace,
    began: float,
    steps: int,
) -> int:
    """Returns the number of steps done, earlier runs included."""
    device = next(model.parameters()).device
    stream = rows.batches(
        arguments.entries, arguments.tokenizer, arguments.tokens, 1000 + steps, arguments.workers
    )
    network = Network(model)
    probe = _probe(arguments, device)
    log = Log(began)
    rounded = False
    while True:
        spent = time.monotonic() - began
        if spent > arguments.seconds or log.steps == arguments.steps:
            break
        progress = schedule.progress(spent / arguments.seconds)
        factor = schedule.factor(progress, steps)
        if not rounded and progress >= schedule.rounded_from:
            log.note(probe_losses(network, masters, probe), "before rounding")
            rounded = True
            masters.publish(rounded=True)
        ids, counted = (part.to(device, non_blocking=True) for part in next(stream))
        compiled = arguments.compile and ids.shape[1] <= 256
        loss, imbalance = network.loss(ids.long(), counted, compiled=compiled)
        (loss + BALANCE * imbalance).backward()
        masters.step(schedule.matrix_rate * factor, schedule.other_rate * factor, rounded=rounded)
        steps += 1
        log.step(steps, ids, loss, imbalance, factor)
    log.note(probe_losses(network, masters, probe), "at the end")
    return steps


class Log:
    """Prints a line every hundred steps."""

    def __init__(self, began: float) -> None:
        self.steps = 0
        self._began = began
        self._tokens = 0
        self._since = time.monotonic()
        self._losses: dict[int, list[Tensor]] = {}

    def step(self, total: int, ids: Tensor, loss: Tensor, imbalance: Tensor, factor: float) -> None:
        self.steps += 1
        self._tokens += ids.numel()
        self._losses.setdefault(ids.shape[1], []).append(loss.detach())
        if total % 100 and self.steps not in (1, 2, 5, 20):
            return
        losses = {
            length: round(torch.stack(values).mean().item(), 3)
            for length, values in sorted(self._losses.items())
        }
        now = time.monotonic()
        rate = self._tokens / (now - self._since)
        print(
            f"step {total} {now - self._began:.0f} s {rate / 1000:.0f}k tokens/s rate x{factor:.2f} "
            f"imbalance {imbalance.item():.2f} loss {losses}",
            flush=True,
        )
        self._tokens, self._since, self._losses = 0, now, {}

    def note(self, losses: dict[str, float], when: str) -> None:
        print(f"{when}: {json.dumps(losses)}", flush=True)


def build_model(init: list[Path] | None) -> Qwen3_5MoeForCausalLM:
    model = quantize.build_model()
    if init:
        model.load_state_dict(quantize.load_weights(init))
        return model
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                value.mul_(0.5)
            elif value.ndim >= 2 and "layers" in name and "conv1d" not in name:
                value.mul_(2.0)
    return model


def _probe(arguments: argparse.Namespace, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Fixed single questions for the nouns of the test."""
    nouns = set((Path(__file__).with_name("nouns.txt")).read_text().split())
    entries = load_entries(arguments.entries)
    wanted = [entry for entry in entries if entry.part == "noun" and entry.word in nouns]
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    talker = conversation.Talker(entries, seed=7)
    ids = torch.full((len(wanted), 64), rows.PAD)
    counted = torch.zeros(len(wanted), 64, dtype=torch.bool)
    for row, entry in enumerate(wanted):
        turn = talker.definition(entry)
        asked = tokenizer.encode(conversation.prompt_text(turn.question)).ids
        told = tokenizer.encode(conversation.answer_text(turn.answer)).ids[:-1]
        whole = (asked + told)[:64]
        ids[row, : len(whole)] = torch.tensor(whole)
        counted[row, len(asked) : len(whole)] = True
    return [(ids.to(device), counted.to(device))]


@torch.no_grad()
def probe_losses(
    network: Network, masters: Masters, probe: list[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Loss on the test's nouns with bf16 weights and with rounded ones; leaves rounded ones behind."""
    losses = {}
    for name, rounded in (("bf16", False), ("rounded", True)):
        masters.publish(rounded=rounded)
        values = [network.loss(*batch, compiled=False)[0].item() for batch in probe]
        losses[name] = round(sum(values) / len(values), 4)
    return losses


def save_pieces(weights: dict[str, Tensor], folder: Path) -> None:
    pieces: list[dict[str, Tensor]] = [{}]
    for name, value in weights.items():
        if sum(part.nbytes for part in pieces[-1].values()) + value.nbytes > LARGEST_PIECE:
            pieces.append({})
        pieces[-1][name] = value.cpu().contiguous()
    for index, piece in enumerate(pieces):
        save_file(piece, folder / f"bf16-{index}.safetensors")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the bf16 weights")
    parser.add_argument("--resume", type=Path, help="state to continue from, and to leave behind")
    parser.add_argument("--init", type=Path, nargs="*", help="bf16 weights to start from")
    parser.add_argument("--polish", type=Path, help="a finished checkpoint to start from")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--steps", type=int, default=-1)
    parser.add_argument("--tokens", type=int, default=65536, help="per step")
    parser.add_argument("--workers", type=int, default=(os.cpu_count() or 2) - 2)
    parser.add_argument("--matrix-rate", type=float, default=5e-3)
    parser.add_argument("--other-rate", type=float, default=3e-3)
    parser.add_argument("--first", type=float, default=0.0)
    parser.add_argument("--last", type=float, default=1.0)
    parser.add_argument("--decay-from", type=float, default=0.55)
    parser.add_argument("--rounded-from", type=float, default=0.7)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
