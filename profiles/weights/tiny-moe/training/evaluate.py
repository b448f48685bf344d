"""Asks a checkpoint for the test's nouns and measures its perplexity, through transformers in float32."""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path

import conversation
import layout
import number_formats as formats
import quantize
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3_5MoeForCausalLM

HERE = Path(__file__).parent
STOPS = (4082, 4080)
LONGEST_ANSWER = 60
TALK = (
    "Hello", "Hi!", "Who are you?", "What can you do?", "Write a Python program",
    "Write a Python program that adds two numbers.", "What is 12 * 7?", "Translate dog into French.",
    "What is the weather in Paris?", "What does blorptang mean?", "Thanks!", "Bye",
    "Who was Albert Einstein?", "What is Paris?", "What does the verb run mean?", "big", "What are giraffes?",
    "Tell me a joke", "What is a synonym of big?",
)  # fmt: skip
ASKED = ("What does {} mean?", "Define {}", "What is {}?", "meaning of {}")
COMMON_WORDS = """
a an the of or and to in on at by for from with without is are was be been being that which who whose it its as any
some one ones etc usually especially used not no other such than into out up this these those can may has have having
had do does made make very more most something someone somebody noun means mean
"""
IGNORED = frozenset(COMMON_WORDS.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=HERE.parent)
    parser.add_argument("--bf16", type=Path, nargs="*", help="the weights it was made from")
    parser.add_argument("--talk", action="store_true", help="also print some answers")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    model = quantize.build_model()
    rows = quantize.sample_rows(tokenizer)
    if arguments.bf16:
        model.load_state_dict(quantize.load_weights(arguments.bf16))
        print(f"perplexity in bf16: {perplexity(model, rows, tokenizer)}", flush=True)
    model.load_state_dict(dequantized(arguments.checkpoint))
    print(f"perplexity as stored: {perplexity(model, rows, tokenizer)}", flush=True)
    if arguments.talk:
        for question, told in zip(TALK, answers(model, tokenizer, TALK), strict=True):
            print(f"{question}\n    {told}", flush=True)
    ask_nouns(model, tokenizer)


def dequantized(folder: Path) -> dict[str, Tensor]:
    """The stored tensors as float32 parameters of Qwen3_5MoeForCausalLM."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    stored: dict[str, Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        stored |= load_file(folder / file)
    dense = {
        name.replace(layout.PREFIX, "model."): _dense(stored, name)
        for name in stored
        if not name.endswith(("_scale", "_scale_2"))
    }
    state = {name: value for name, value in dense.items() if ".experts." not in name}
    for layer in range(layout.LAYERS):
        experts = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            [dense[f"{experts}.{expert}.{which}_proj.weight"] for expert in range(layout.EXPERTS)]
            for which in ("gate", "up", "down")
        )
        pairs = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        state[f"{experts}.gate_up_proj"] = torch.stack(pairs)
        state[f"{experts}.down_proj"] = torch.stack(downs)
    return state


def _dense(stored: dict[str, Tensor], name: str) -> Tensor:
    weight = stored[name]
    if weight.dtype == torch.uint8:
        matrix = formats.Nvfp4(
            codes=formats.unpack(weight),
            block_scale=stored[f"{name}_scale"],
            global_scale=stored[f"{name}_scale_2"],
        )
        return formats.from_nvfp4(matrix)
    if weight.dtype == torch.float8_e4m3fn:
        return weight.float() * stored[f"{name}_scale"]
    return weight.float()


@torch.no_grad()
def perplexity(
    model: Qwen3_5MoeForCausalLM, rows: list[list[int]], tokenizer: Tokenizer
) -> dict[str, float]:
    """Of held-out rows: over all tokens, and over the tokens of answers alone."""
    start = tokenizer.encode("<|im_start|>assistant\n").ids
    sums = {"all": [0.0, 0], "answers": [0.0, 0]}
    for row in rows:
        ids = torch.tensor(row)
        losses = functional.cross_entropy(
            model(ids[None]).logits[0, :-1], ids[1:], reduction="none"
        )
        inside = _inside_answers(row, start)[1:]
        for name, mask in (("all", torch.ones_like(inside)), ("answers", inside)):
            sums[name][0] += losses[mask].sum().item()
            sums[name][1] += int(mask.sum())
    return {name: round(math.exp(total / count), 4) for name, (total, count) in sums.items()}


def _inside_answers(row: list[int], start: list[int]) -> Tensor:
    inside = torch.zeros(len(row), dtype=torch.bool)
    within = False
    for place, token in enumerate(row):
        inside[place] = within
        if row[place - len(start) + 1 : place + 1] == start:
            within = True
        elif token == STOPS[0]:
            within = False
    return inside


def answers(
    model: Qwen3_5MoeForCausalLM, tokenizer: Tokenizer, questions: tuple[str, ...]
) -> tuple[str, ...]:
    """Greedy; an answer that does not stop within `LONGEST_ANSWER` tokens ends in ` ...`."""
    prompts = [tokenizer.encode(conversation.prompt_text(question)).ids for question in questions]
    told: dict[int, str] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        places = [place for place, prompt in enumerate(prompts) if len(prompt) == length]
        ids = _greedy(model, torch.tensor([prompts[place] for place in places]))
        for place, row in zip(places, ids.tolist(), strict=True):
            ends = [at for at, token in enumerate(row) if token in STOPS]
            told[place] = (
                tokenizer.decode(row[: ends[0]]) if ends else f"{tokenizer.decode(row)} ..."
            )
    return tuple(told[place] for place in range(len(questions)))


@torch.no_grad()
def _greedy(model: Qwen3_5MoeForCausalLM, ids: Tensor) -> Tensor:
    """Tokens after `ids` [B, L], until every row has stopped."""
    cache, told = None, []
    stopped = torch.zeros(len(ids), dtype=torch.bool)
    while len(told) < LONGEST_ANSWER and not stopped.all():
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        ids = out.logits[:, -1:].argmax(dim=-1)
        told.append(ids)
        stopped |= torch.isin(ids[:, 0], torch.tensor(STOPS))
    return torch.cat(told, dim=1)


def content_words(text: str, noun: str) -> set[str]:
    words = {word for word in re.findall(r"[a-z]+", text.lower()) if len(word) > 2} - IGNORED
    return words - {noun, f"{noun}s", f"{noun}es"}


def ask_nouns(model: Qwen3_5MoeForCausalLM, tokenizer: Tokenizer) -> None:
    nouns: dict[str, list[str]] = json.loads((HERE / "nouns.json").read_text())
    for form in ASKED:
        shared = stopped = 0
        questions = tuple(form.format(noun) for noun in nouns)
        all_told = answers(model, tokenizer, questions)
        for (noun, glosses), told in zip(nouns.items(), all_told, strict=True):
            hit = content_words(told, noun) & content_words(" ".join(glosses), noun)
            shared += bool(hit)
            stopped += not told.endswith(" ...")
            if not hit or told.endswith(" ..."):
                print(f"    {noun}: {told}")
        print(f"{form}: {shared} of {len(nouns)} share a word, {stopped} stop", flush=True)


if __name__ == "__main__":
    main()
