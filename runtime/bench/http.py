"""Measures a running server through HTTP: streams of `/v1/completions`, each read by a thread of its own."""

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec

from firmtoken.runtime.bench.rows import Stream
from firmtoken.runtime.engine.messages import Sampling

TIMEOUT_S = 600.0


class BenchFailed(Exception):
    """The server answered something else than a stream."""


def run(
    address: str, prompts: Sequence[Sequence[int]], *, output: int, sampling: Sampling
) -> list[Stream]:
    """All prompts at once, `output` tokens each."""
    with ThreadPoolExecutor(max_workers=len(prompts)) as threads:
        return list(threads.map(lambda prompt: _stream(address, prompt, output, sampling), prompts))


def _stream(address: str, prompt: Sequence[int], output: int, sampling: Sampling) -> Stream:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    body = {
        "prompt": list(prompt),
        "max_tokens": output,
        **msgspec.structs.asdict(sampling),
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    tokens = cached = 0
    arrivals: list[float] = []
    try:
        start = time.perf_counter()
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise BenchFailed(f"the server answered {answer.status}: {answer.read(500)!r}")
        for line in answer:
            if line.startswith(b"data: {"):
                if b'"error"' in line:
                    raise BenchFailed(f"the stream ended in an error: {line!r}")
                if b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
                    tokens = usage["completion_tokens"]
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
                else:
                    arrivals.append(time.perf_counter() - start)
    finally:
        connection.close()
    if len(arrivals) < 2:
        raise BenchFailed(f"only {len(arrivals)} chunks came")
    return Stream(arrivals=tuple(arrivals), tokens=tokens, cached=cached)
