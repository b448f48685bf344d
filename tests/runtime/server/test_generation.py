"""One request's answers: what the engine's events do to their counts."""

import asyncio
import logging

from firmtoken.runtime.engine.messages import Add, Admitted, Done, Sampling
from firmtoken.runtime.server.answer import Answer, Order
from firmtoken.runtime.server.generation import Generation
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.session import Session, Token

LOG = logging.getLogger("firmtoken.test")
GREEDY = Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=1)


def answer(model: ServedModel) -> Answer:
    order = Order(
        prompt=(1, 2),
        asked_output=None,
        sampling=GREEDY,
        stop_token_ids=(),
        stop_strings=(),
        keep_stop=False,
        param="prompt",
    )
    return Answer(0, order, model.tokenizer, None)


def admitted(cached_tokens: int, *, resumed: bool) -> Admitted:
    return Admitted(request_id=1, cached_tokens=cached_tokens, pages=1, waiting=0, resumed=resumed)


def test_only_the_first_admission_says_what_was_cached(served_model: ServedModel) -> None:
    """A resumed request finds the pages that it filled itself."""

    async def main() -> None:
        session = Session(lambda session, add: None, lambda request_id: None)
        session.submit(
            Add(request_id=1, token_ids=[1, 2], max_output=3, sampling=GREEDY, stop_token_ids=[])
        )
        generation = Generation("x", session, {1: answer(served_model)}, log=LOG, clock=lambda: 0.0)
        for event in (
            admitted(1, resumed=False),
            Token(request_id=1, token_id=5),
            admitted(99, resumed=True),
        ):
            session.deliver(event)
        pieces = generation.pieces(silence_s=5)
        for _ in range(3):
            await anext(pieces)
        assert generation.answers[0].cached_tokens == 1
        session.deliver(
            Done(
                request_id=1,
                reason="length",
                message="",
                prompt_tokens=2,
                cached_tokens=1,
                output_tokens=1,
            )
        )
        async for _ in pieces:
            pass
        generation.close()

    asyncio.run(main())
