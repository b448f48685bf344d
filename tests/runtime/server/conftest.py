"""A server on a real port with a scripted engine behind it."""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import tokenizers
import uvicorn
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from firmtoken.runtime.server.app import create_app
from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.life import EngineSpec
from firmtoken.runtime.server.listen import Listener, listen
from firmtoken.runtime.server.served_model import ServedModel, load_served_model
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.serving import ServingPlan

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
IM_START, IM_END, END_OF_TEXT, THINK = 256, 257, 258, 259
VOCAB = 320
CREATED = 1_800_000_000
"""The wall clock of these servers."""

TEMPLATE = """{%- if not messages %}{{ raise_exception('No messages provided.') }}{% endif -%}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
{%- if shout is defined %}{{ shout | upper }}{% endif %}
"""

PLAN = ServingPlan(
    model="tiny",
    dialect="qwen3_5",
    vocab_size=VOCAB,
    effective_context=1000,
    model_max=4096,
    largest_context=3000,
    limited_by="asked",
    page_size=16,
    pages=66,
    max_num_seqs=4,
    queue=64,
    queue_tokens=16_000,
    default_output=50,
    output_reserve=1024,
    segments={"bank": 4096, "snapshots": 8192},
    environment={},
)


def write_model_folder(folder: Path) -> Path:
    """A byte-level tokenizer of 256 bytes, a dozen merges and four added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    merges = []
    for index, (left, right) in enumerate(
        [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("Ã", "©"), ("ð", "Ł")]
    ):
        merges.append((left, right))
        vocab[left + right] = 260 + index
    # Ids 256 to 259 belong to the added tokens, so the merged ones come behind them.
    inner = tokenizers.Tokenizer(
        models.BPE(vocab={**vocab, **special_ids()}, merges=merges, fuse_unk=False)
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")]
    )
    inner.add_tokens([AddedToken("<think>", special=False)])
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "bos_token": null}')
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(
        '{"eos_token_id": [257, 258], "temperature": 0.3, "top_k": 20, "top_p": 0.95}'
    )
    return folder


def special_ids() -> dict[str, int]:
    return {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258, "<think>": 259}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def served_model(model_folder: Path) -> ServedModel:
    return load_served_model(
        model_folder, dialect="qwen3_5", vocab_size=VOCAB, now=lambda: datetime(2026, 1, 2)
    )


def spec(script: dict[str, object], **changes: Any) -> EngineSpec:
    """How the fake engine is started."""
    values: dict[str, Any] = {
        "plan_json": msgspec.json.encode(script),
        "segments": PLAN.segments,
        "environment": dict(os.environ),
        "threads": 1,
        "command": (sys.executable, "-P", str(FAKE_ENGINE)),
        "start_s": 120.0,
        "answer_s": 20.0,
        "most_restarts": 0,
    }
    return EngineSpec(**values | changes)


@pytest.fixture
def plan() -> ServingPlan:
    return PLAN


@pytest.fixture
def engine_spec() -> Callable[..., EngineSpec]:
    return spec


@dataclass
class Running:
    """One server of a test."""

    address: str
    service: Service
    loop: asyncio.AbstractEventLoop
    journal: Path
    stop: Callable[[], None]
    clients: list[openai.OpenAI] = field(default_factory=list)

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 30} | options
        client = openai.OpenAI(base_url=f"{self.address}/v1", **options)
        self.clients.append(client)
        return client

    def notes(self, word: str) -> list[str]:
        """Lines of the engine's journal that begin with `word`."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [line for line in lines if line.split()[0] == word]


@contextmanager
def serving(
    model: ServedModel,
    journal: Path,
    script: dict[str, object],
    plan: dict[str, object] | None = None,
    key_hashes: tuple[bytes, ...] = (),
    wait: bool = True,
    **changes: Any,
) -> Iterator[Running]:
    """Serve until the block ends, in a thread with a loop of its own."""
    started: list[Running] = []
    up = threading.Event()

    async def main() -> None:
        log = logging.getLogger("firmtoken.test")
        engine = EngineClient(
            spec(script | {"journal": str(journal)}, **changes), log=log, clock=time.monotonic
        )
        service = Service(
            plan=replace(PLAN, **plan or {}),  # type: ignore[arg-type]
            plan_json=b'{"schema":"test"}',
            model=model,
            engine=engine,
            log=log,
            clock=time.monotonic,
            wall_clock=lambda: CREATED + 0.5,
            draw_seed=lambda: 7,
            keep_alive_s=15,
        )
        listener: Listener = listen("127.0.0.1", 0)
        config = uvicorn.Config(
            create_app(service, key_hashes=key_hashes), log_config=None, lifespan="off"
        )
        server = uvicorn.Server(config)
        await engine.start()
        if wait:
            await engine.wait_ready()
        loop = asyncio.get_running_loop()
        started.append(
            Running(
                address=listener.address,
                service=service,
                loop=loop,
                journal=journal,
                stop=lambda: setattr(server, "should_exit", True),
            )
        )
        serve = asyncio.create_task(server.serve(sockets=[listener.socket]))
        while not server.started:
            await asyncio.sleep(0.01)
        up.set()
        await serve
        await engine.stop(grace_s=0.3)

    # A daemon: one that never comes up must not keep pytest from leaving.
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert up.wait(20)
    running = started[0]
    try:
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.stop()
        thread.join(20)
        assert not thread.is_alive()


Serve = Callable[..., Running]


@pytest.fixture
def serve(served_model: ServedModel, tmp_path: Path) -> Iterator[Serve]:
    """Start servers; they end with the test."""
    with ExitStack() as stack:

        def start(script: dict[str, object] | None = None, **options: Any) -> Running:
            journal = tmp_path / "journal"
            model = options.pop("model", served_model)
            return stack.enter_context(serving(model, journal, script or {}, **options))

        yield start


@pytest.fixture(scope="session")
def shared(
    served_model: ServedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """One server for tests that leave no trace in it."""
    with serving(served_model, tmp_path_factory.mktemp("shared") / "journal", {}) as running:
        yield running
