"""Token ids to text as they come, never half a character.

A byte-level token is some bytes, so an incremental UTF-8 decoder is exact: it keeps the bytes of a character
whose end has not come, and writes U+FFFD only for bytes that no continuation could make valid. Nothing is ever
decoded twice.
"""

import codecs

from firmtoken.runtime.server.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer; fed in order, finished once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """Whole characters that this token completes; control tokens write nothing."""
        if self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """U+FFFD if the answer ended inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
