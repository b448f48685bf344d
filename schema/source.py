"""YAML 1.2 text -> a tree with places: bounded, without tags, duplicate keys or a second document."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from firmtoken.schema.diagnostic import (
    Diagnostic,
    Fault,
    Place,
    ProfileError,
    diagnose,
    literal,
)
from firmtoken.schema.tree import Entry, ListNode, MapNode, Node, Plain, Scalar

MAX_BYTES = 2**20
MAX_NODES = 20_000
"""Counted after aliases are expanded, so ten lines of aliases cannot become a billion values."""
MAX_DEPTH = 16
MAX_DIGITS = 60
MAX_FAULTS = 50
"""Of one file's text; nobody reads on after that."""

# The plain scalars of YAML 1.2's core schema. (YAML 1.1, and ruamel, know more: `yes`, `12:30`, `1_000`.)
WORDS: Mapping[str, Plain] = {
    spelling: value
    for words, value in (
        (("", "~", "null", "Null", "NULL"), None),
        (("true", "True", "TRUE"), True),
        (("false", "False", "FALSE"), False),
    )
    for spelling in words
}
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
"""What a terminal obeys instead of showing, or a picture (XML 1.0) cannot hold; YAML's escapes can write it."""
NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


FIELDS = "`ft schema` prints every field that there is"
NOT_A_PROFILE = "is this the right file? A profile is a page of text"


class Unreadable(Exception):
    """The text cannot be followed beyond this place."""

    def __init__(self, fault: Fault, line: int, column: int) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.line = line
        self.column = column


def read_yaml(data: bytes, file: str) -> Node:
    """The tree of one file, or a `ProfileError` with every fault of its text."""
    builder = Builder(file=file)
    try:
        for event in events(data):
            builder.take(event)
        if builder.root is None:
            raise Unreadable(Fault(code="empty", message="the file is empty", hint=FIELDS), 1, 1)
    except Unreadable as error:
        builder.refuse(error.fault, error.line, error.column)
    if builder.faults or builder.root is None:
        raise ProfileError(builder.faults)
    return builder.root


def events(data: bytes) -> Iterator[Event]:
    text = decode(data)
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Unreadable(syntax_fault(error), line, column) from error
    except ReaderError as error:
        fault = Fault(
            code="yaml",
            message=f"`{literal(chr(error.character))}` may not occur in YAML",
            hint="remove it: a profile is plain text",
        )
        raise Unreadable(fault, *position(text, error.position)) from error
    except (YAMLError, ValueError, OverflowError, AssertionError) as error:
        # What ruamel lets through for `"\\UFFFFFFFF"` and `%YAML 1.11`; they have no position.
        fault = Fault(code="yaml", message="this is not YAML", hint=NOT_A_PROFILE)
        raise Unreadable(fault, 1, 1) from error


def decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        fault = Fault(
            code="too_long",
            message=f"the file is longer than {MAX_BYTES // 2**20} MiB",
            hint=NOT_A_PROFILE,
        )
        raise Unreadable(fault, 1, 1)
    data = data.removeprefix(BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        fault = Fault(
            code="encoding",
            message=f"byte `0x{data[error.start]:02x}` is not UTF-8",
            hint="save the file as UTF-8",
        )
        before = data[: error.start].decode()
        raise Unreadable(fault, *position(before, len(before))) from error


def position(text: str, offset: int) -> tuple[int, int]:
    """Line and column of a character."""
    before = text[:offset]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def syntax_fault(error: MarkedYAMLError) -> Fault:
    """What ruamel says, and for the usual slips what to do."""
    problem = re.sub("<([a-z ]+)>", r"\1", literal(error.problem or "this is not YAML"))
    hint = "check the quotes, brackets and indents up to here"
    if "\\t" in problem:
        problem, hint = "a tab cannot indent or separate", "use spaces"
    elif "mapping values are not allowed" in problem:
        problem = "a second `:` is not allowed here"
        hint = "quote a text that contains `: `, and give the fields of one mapping one indent"
    elif "cannot start any token" in problem:
        hint = "quote a text that begins with a special character"
    elif "end of stream" in problem or "stream end" in problem:
        hint = "a quote or bracket is not closed"
    elif "block end" in problem or "block collection" in problem:
        hint = "fields of one mapping need the same indent"
    return Fault(code="yaml", message=problem, hint=hint)


@dataclass(slots=True, kw_only=True)
class Frame:
    """A list or mapping that is still open."""

    place: Place
    is_map: bool
    anchor: str | None
    size: int = 1
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    key: Entry | None = None
    """The key that waits for its value; its own `value` is the key's node."""


@dataclass(slots=True, kw_only=True)
class Builder:
    """Turns parser events into a tree."""

    file: str
    root: Node | None = None
    faults: list[Diagnostic] = field(default_factory=list)
    stack: list[Frame] = field(default_factory=list)
    anchors: dict[str, tuple[Node, int]] = field(default_factory=dict)
    size: int = 0
    documents: int = 0

    def take(self, event: Event) -> None:
        match event:
            case DocumentStartEvent():
                self.start_document(event)
            case AliasEvent():
                self.add(*self.anchored(event))
            case ScalarEvent():
                node = Scalar(place=self.place(event), value=self.value(event))
                self.check_tag(event)
                self.remember(event.anchor, node, 1)
                self.add(node, 1)
            case MappingStartEvent() | SequenceStartEvent():
                self.open(event)
            case MappingEndEvent() | SequenceEndEvent():
                self.close()

    def start_document(self, event: DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            fault = Fault(
                code="documents", message="a second document begins", hint="one file, one profile"
            )
            raise Unreadable(fault, *self.mark(event))
        if event.version not in (None, (1, 2)):
            fault = Fault(code="version", message="only YAML 1.2 is read", hint="drop `%YAML`")
            raise Unreadable(fault, 1, 1)

    def open(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        self.check_tag(event)
        if len(self.stack) == MAX_DEPTH:
            fault = Fault(
                code="too_deep", message=f"more than {MAX_DEPTH} levels deep", hint=NOT_A_PROFILE
            )
            raise Unreadable(fault, *self.mark(event))
        is_map = isinstance(event, MappingStartEvent)
        self.stack.append(Frame(place=self.place(event), is_map=is_map, anchor=event.anchor))

    def close(self) -> None:
        frame = self.stack.pop()
        node: Node = (
            MapNode(place=frame.place, entries=tuple(frame.entries.values()))
            if frame.is_map
            else ListNode(place=frame.place, items=tuple(frame.items))
        )
        self.remember(frame.anchor, node, frame.size)
        self.add(node, frame.size, counted=True)

    def add(self, node: Node, size: int, *, counted: bool = False) -> None:
        """Put a finished node where it belongs."""
        self.size += 1 if counted else size
        if self.size > MAX_NODES:
            fault = Fault(
                code="too_many", message=f"more than {MAX_NODES} values", hint=NOT_A_PROFILE
            )
            raise Unreadable(fault, node.place.line, node.place.column)
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        frame.size += size
        if not frame.is_map:
            frame.items.append(node)
        elif frame.key is None:
            frame.key = Entry(key=self.key_of(node), place=node.place, value=node)
        else:
            self.add_entry(frame, Entry(key=frame.key.key, place=frame.key.place, value=node))

    def add_entry(self, frame: Frame, entry: Entry) -> None:
        frame.key = None
        first = frame.entries.setdefault(entry.key, entry)
        if first is not entry:
            fault = Fault(
                code="duplicate",
                message=f"`{literal(entry.key)}` is written twice",
                hint=f"the first is on line {first.place.line}",
            )
            self.refuse(fault, entry.place.line, entry.place.column)

    def key_of(self, node: Node) -> str:
        if isinstance(node, Scalar):
            return (
                node.value
                if isinstance(node.value, str)
                else ("null" if node.value is None else str(node.value).lower())
            )
        fault = Fault(code="key", message="a key must be a single word", hint="write `name: value`")
        self.refuse(fault, node.place.line, node.place.column)
        return ""

    def value(self, event: ScalarEvent) -> Plain:
        if (unshowable := UNSHOWABLE.search(event.value)) is not None:
            fault = Fault(
                code="unshowable",
                message=f"the text holds `{literal(unshowable[0])}`, which nothing can show",
                hint="write it without",
            )
            self.refuse(fault, *self.mark(event))
        if not event.implicit[0]:
            return str(event.value)
        try:
            return resolve(event.value)
        except Unreadable as error:
            self.refuse(error.fault, *self.mark(event))
            return None

    def anchored(self, event: AliasEvent) -> tuple[Node, int]:
        known = self.anchors.get(event.anchor)
        if known is None:
            fault = Fault(
                code="alias",
                message=f"`*{literal(event.anchor)}` refers to no value above",
                hint="write the value itself, or quote a text that begins with `*`",
            )
            raise Unreadable(fault, *self.mark(event))
        return known

    def remember(self, anchor: str | None, node: Node, size: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = (node, size)

    def check_tag(self, event: ScalarEvent | MappingStartEvent | SequenceStartEvent) -> None:
        if event.ctag is not None:
            fault = Fault(
                code="tag",
                message=f"tags such as `{literal(event.ctag)}` are not read",
                hint="write the plain value",
            )
            self.refuse(fault, *self.mark(event))

    def refuse(self, fault: Fault, line: int, column: int) -> None:
        place = Place(file=self.file, line=line, column=column)
        self.faults.append(diagnose(fault, place, ""))
        if len(self.faults) == MAX_FAULTS:
            raise ProfileError(self.faults)

    def place(self, event: Event) -> Place:
        line, column = self.mark(event)
        return Place(file=self.file, line=line, column=column)

    @staticmethod
    def mark(event: Event) -> tuple[int, int]:
        return event.start_mark.line + 1, event.start_mark.column + 1


def resolve(text: str) -> Plain:
    """The value of a plain scalar in YAML 1.2's core schema."""
    if text in WORDS:
        return WORDS[text]
    if NOT_FINITE.fullmatch(text):
        return float(text.lower().replace(".", ""))
    is_integer = INTEGER.fullmatch(text) is not None
    if not is_integer and not FLOAT.fullmatch(text):
        return text
    if len(text) > MAX_DIGITS:
        fault = Fault(
            code="digits",
            message=f"`{literal(text)}` is too long",
            hint=f"a number has at most {MAX_DIGITS} digits; quote it if it is a text",
        )
        raise Unreadable(fault, 1, 1)
    if not is_integer:
        return float(text)
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
