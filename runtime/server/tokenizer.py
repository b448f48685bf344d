"""Text to token ids and back, over the `tokenizers` library and a model's own files.

Control tokens: a rendered chat is encoded with its special tokens parsed, whoever wrote them, as vLLM and
transformers do. So a user who types `<|im_end|>` ends their own turn; they can reach no other user's. Encoding
template text and user text apart is no way out: BPE merges across the seam, and the ids would differ from those
the model was trained on.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import tokenizers

from firmtoken.runtime.dialects.chatml import BadTemplate, ChatTemplate
from firmtoken.runtime.server.folder import ModelFolderFault, read_bytes, read_json, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """What a model's folder says about its text."""

    tokenizer: "Tokenizer"
    template: ChatTemplate | None
    """None: neither file has one."""


class Tokenizer:
    """A byte-level tokenizer; safe to use from any thread."""

    def __init__(self, inner: tokenizers.Tokenizer, *, tags: Collection[str] = ()) -> None:
        """`tags` are read by a dialect: they are text even where the file calls their tokens special."""
        self._inner = inner
        self._byte_of = {character: byte for byte, character in enumerate(_byte_alphabet())}
        added = inner.get_added_tokens_decoder()
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self._special = frozenset(
            token for token, entry in added.items() if entry.special and entry.content not in tags
        )
        self.vocab_size = inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written in it are parsed."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which a reader never sees."""
        return token_id in self._special

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written so."""
        return self._inner.token_to_id(text)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token writes; nothing for an id without a token (a padding row of the head)."""
        if token_id in self._added:
            return self._added[token_id]
        token = self._inner.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b""
        return bytes(self._byte_of[character] for character in token)

    def token_string(self, token_id: int) -> str:
        """The token as its vocabulary writes it."""
        return self._inner.id_to_token(token_id) or ""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of whole answers; bytes that are no UTF-8 become U+FFFD."""
        kept = (
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and self.is_special(token_id))
        )
        return b"".join(kept).decode("utf-8", errors="replace")


def load_tokenizer(
    folder: Path, *, now: Callable[[], datetime], tags: Collection[str] = ()
) -> LoadedTokenizer:
    """The tokenizer and chat template in `folder`; faults are `ModelFolderFault`.

    `tags` are a dialect's, `now` is what the template's `strftime_now` reads.
    """
    path = folder / "tokenizer.json"
    try:
        inner = tokenizers.Tokenizer.from_buffer(read_bytes(path))
    except ModelFolderFault:
        raise
    except Exception as error:  # the library raises a bare Exception for any fault in the file
        raise ModelFolderFault(
            path, f"not a tokenizer: {error}", hint="download or copy the file again"
        ) from error
    kind = type(inner.decoder).__name__
    if kind != "ByteLevel":
        raise ModelFolderFault(
            path,
            f"the decoder is `{kind}`, and only `ByteLevel` can be served",
            hint="Qwen and MiniMax checkpoints have byte-level tokenizers",
        )
    # A prompt is never cut or padded in silence, whatever the file was saved with.
    inner.no_truncation()
    inner.no_padding()
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path)
    template = _load_template(folder, config_path, config, now)
    return LoadedTokenizer(tokenizer=Tokenizer(inner, tags=tags), template=template)


def _load_template(
    folder: Path, config_path: Path, config: Mapping[str, object], now: Callable[[], datetime]
) -> ChatTemplate | None:
    """chat_template.jinja goes before the same text inside tokenizer_config.json, as in transformers."""
    path = folder / "chat_template.jinja"
    inline = config.get("chat_template")
    if path.exists() or path.is_symlink():
        source = read_text(path)
    elif isinstance(inline, str):
        path, source = config_path, inline
    else:
        return None
    try:
        template = ChatTemplate(source, special_tokens=_special_tokens(config), now=now)
        template.try_out()
    except BadTemplate as error:
        raise ModelFolderFault(
            path,
            f"the chat template {error}",
            hint="use the model's own template",
        ) from error
    return template


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """`bos_token` and so on, which are plain text or a mapping with `content`."""
    texts: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            texts[name] = content
    return texts


def _byte_alphabet() -> str:
    """GPT-2's printable stand-in for each byte 0..255: itself where printable, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(rest)) for byte in range(256))
