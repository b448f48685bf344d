"""What is wrong with an answer. Texts are judged elsewhere: near ties take a second opinion."""

from exchange import Answered, Ask, Heard, Refused


def faults(ask: Ask, heard: Heard) -> list[str]:
    """What is wrong with it; a client that left may have heard anything but a failure."""
    if heard.left:
        return [f"status {heard.status} before it left"] if heard.status >= 500 else []
    if heard.broken:
        return [heard.broken]
    if heard.turned_away:
        return []
    if isinstance(ask.must, Refused):
        code = None if heard.error is None else heard.error.get("code")
        if (heard.status, code) != (ask.must.status, ask.must.code):
            return [f"{ask.must} was due, {heard.status} {code} came"]
        return []
    if heard.status != 200 or heard.error is not None:
        return [f"status {heard.status}, error {heard.error}"]
    return _answer_faults(ask.must, heard)


def _answer_faults(must: Answered, heard: Heard) -> list[str]:
    found = []
    if not heard.ended:
        found.append("the stream ended without [DONE]")
    if sorted(heard.reasons) != list(range(must.choices)):
        found.append(f"choices {sorted(heard.reasons)} have ended, {must.choices} were due")
    for index, reasons in heard.reasons.items():
        if reasons not in (["stop"], ["length"]):
            found.append(f"choice {index} ended as {reasons}")
        if any(stop in heard.texts[index] for stop in must.forbidden):
            found.append(f"choice {index} contains a stop string")
    return found + _usage_faults(must, heard)


def _usage_faults(must: Answered, heard: Heard) -> list[str]:
    if heard.usage is None:
        return ["no usage"]
    found = []
    prompt, output = heard.usage["prompt_tokens"], heard.usage["completion_tokens"]
    if must.prompt_tokens not in (None, prompt):
        found.append(f"{prompt} prompt tokens, {must.prompt_tokens} were sent")
    if must.output_tokens not in (None, output):
        found.append(f"{output} output tokens, {must.output_tokens} were due")
    if must.output_most is not None and not 1 <= output <= must.output_most:
        found.append(f"{output} output tokens, at most {must.output_most} were due")
    if not 0 <= heard.usage["prompt_tokens_details"]["cached_tokens"] < prompt:
        found.append(f"the cache is said to hold {heard.usage}")
    return found
