"""Chat templates: a checkpoint's own Jinja text, rendered in a sandbox, as transformers renders it.

TemplateFault
├── BadTemplate          the checkpoint's template does not compile, or makes nothing of a message
└── TemplateRefused      the template refused these messages, in its own words
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing

MAX_RENDERED_CHARACTERS = 64 * 2**20
"""A template is a stranger's program: its output has a bound, like a request body."""

_A_CHAT = [{"role": "user", "content": "Hello"}]
_A_TOOL_NAME = "a_tool_to_try"
_A_TOOL = {
    "type": "function",
    "function": {
        "name": _A_TOOL_NAME,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


class TemplateFault(Exception):
    """Root of this tree."""


class BadTemplate(TemplateFault):
    """The checkpoint's template does not compile or cannot be used; the sentence begins with a verb."""


class TemplateRefused(TemplateFault):
    """The template raised: its own sentence, or what is wrong with the messages it was given."""


class ChatTemplate:
    """One compiled template; owned by the server, safe to render from any thread."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime],
    ) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment(now, jinja2.Undefined).from_string(source)
            self._strict = _environment(now, _UnknownName).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BadTemplate(f"does not compile: line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise BadTemplate("does not compile: it nests too deeply") from error

    def try_out(self) -> None:
        """Render one message of a user; raises `BadTemplate` for a template that no request could use."""
        values = {"messages": _A_CHAT, "add_generation_prompt": True}
        try:
            text = _written(self._strict, self._special_tokens | values)
        except TemplateRefused as error:
            raise BadTemplate(f"fails on one message of a user: {error}") from error
        if not text:
            raise BadTemplate("makes an empty prompt of one message of a user")

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object],
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        """The prompt's text; `variables` are the request's `chat_template_kwargs`."""
        return _written(
            self._template,
            self._special_tokens
            | dict(variables)
            # None, as in transformers: a template may ask whether `tools` is defined, and it always is.
            | {"tools": tools, "documents": None}
            | {"messages": messages, "add_generation_prompt": add_generation_prompt},
        )

    def takes_tools(self) -> bool:
        """Whether tools become part of the prompt: a template without a place for them drops them in silence."""
        try:
            text = self.render(_A_CHAT, tools=[_A_TOOL], add_generation_prompt=True, variables={})
        except TemplateRefused:
            return False
        return _A_TOOL_NAME in text


def _written(template: jinja2.Template, values: Mapping[str, object]) -> str:
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(**values):
            length += len(piece)
            if length > MAX_RENDERED_CHARACTERS:
                raise TemplateRefused(
                    f"the chat template wrote more than {MAX_RENDERED_CHARACTERS} characters"
                )
            pieces.append(piece)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        # The last four are what Python operators in a template raise on values of the wrong kind.
        raise TemplateRefused(str(error) or type(error).__name__) from error
    except RecursionError as error:
        raise TemplateRefused("the chat template recursed too deeply") from error
    except MemoryError as error:
        raise TemplateRefused("the chat template asked for more memory than there is") from error
    return "".join(pieces)


class _UnknownName(jinja2.Undefined):
    """A name that nobody defines must not be written; an absent field or special token may."""

    def __str__(self) -> str:
        name = self._undefined_name
        if self._undefined_obj is missing and not (name or "").endswith("_token"):
            self._fail_with_undefined_error()
        return ""


def _environment(
    now: Callable[[], datetime], undefined: type[jinja2.Undefined]
) -> ImmutableSandboxedEnvironment:
    """As transformers' `_compile_jinja_template`: trimmed blocks, loop controls, three functions."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(format: str) -> str:  # noqa: A002  templates may pass it by this name
        return now().strftime(format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
        undefined=undefined,
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    # The classes themselves would hand a template their attributes; transformers closes the same two holes.
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = _PlainNamespace
    return environment


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's tokens for training; a server renders what it encloses."""

    tags: set[str] = {"generation"}  # noqa: RUF012  jinja2's own type of this attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """A namespace without private names."""

    def __init__(*args: object, **values: object) -> None:  # `namespace(self=...)` must work
        self, *rest = args
        attributes = dict(*rest, **values)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold `{name}`: the name begins with `_`")


def _new_dict(*args: Any, **values: object) -> dict[Any, Any]:  # Any: as `dict` itself takes
    return dict(*args, **values)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
