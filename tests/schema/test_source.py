"""YAML text to a tree, and every way in which text can be wrong."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmtoken.schema.diagnostic import Place, ProfileError
from firmtoken.schema.source import FIELDS, MAX_BYTES, NOT_A_PROFILE, read_yaml
from firmtoken.schema.tree import MapNode, key_place, plain, value_place


def page(data: bytes) -> str:
    with pytest.raises(ProfileError) as caught:
        read_yaml(data, "x.yaml")
    return str(caught.value)


NO_ANCHOR = "write the value itself, or quote a text that begins with `*`"


def values(text: str) -> object:
    return plain(read_yaml(text.encode(), "x.yaml"))


def test_scalars_follow_yaml_1_2() -> None:
    text = "[yes, on, 12:30, 1_000, 2026-11-30, 0o17, 0x1F, 017, 1e3, .5, true, ~, '1', -3, +.5]"
    assert values(text) == [
        "yes", "on", "12:30", "1_000", "2026-11-30", 15, 31, 17, 1000.0, 0.5, True, None, "1", -3, 0.5,
    ]  # fmt: skip


def test_infinities_are_read_and_left_to_the_schema() -> None:
    assert values("[.inf, -.Inf]") == [float("inf"), float("-inf")]
    assert str(values(".nan")) == "nan"


def test_every_key_and_value_knows_its_place() -> None:
    root = read_yaml(b"a:\n  b: [1, {c: x}]\n", "x.yaml")
    assert isinstance(root, MapNode)
    assert key_place(root, ("a", "b")) == Place(file="x.yaml", line=2, column=3)
    assert value_place(root, ("a", "b", 1, "c")) == Place(file="x.yaml", line=2, column=14)
    assert value_place(root, ("a",)) == Place(file="x.yaml", line=1, column=1)
    assert value_place(root, ("a", "z")) == Place(file="x.yaml", line=1, column=1)


def test_the_place_of_an_empty_value_is_its_key() -> None:
    root = read_yaml(b"a: 1\nb:\n\nc: 2\n", "x.yaml")
    assert isinstance(root, MapNode)
    assert value_place(root, ("b",)) == Place(file="x.yaml", line=2, column=1)


def test_an_alias_is_what_it_refers_to() -> None:
    assert values("a: &x {b: 1}\nc: *x\n") == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", f"x.yaml:1:1: the file is empty\n  hint: {FIELDS}"),
        (b"# nothing\n", f"x.yaml:1:1: the file is empty\n  hint: {FIELDS}"),
        (b"a: \xff\n", "x.yaml:1:4: byte `0xff` is not UTF-8\n  hint: save the file as UTF-8"),
        (
            b"a: \xc3\xa4\nb: \xc3",
            "x.yaml:2:4: byte `0xc3` is not UTF-8\n  hint: save the file as UTF-8",
        ),
        (
            b"\xef\xbb\xbfa: \xff",
            "x.yaml:1:4: byte `0xff` is not UTF-8\n  hint: save the file as UTF-8",
        ),
        (b'a: "\\UFFFFFFFF"', f"x.yaml:1:1: this is not YAML\n  hint: {NOT_A_PROFILE}"),
        (b"%YAML 1.11\n---\na: 1\n", f"x.yaml:1:1: this is not YAML\n  hint: {NOT_A_PROFILE}"),
        (b"a: b\n\tc: d\n", "x.yaml:2:1: a tab cannot indent or separate\n  hint: use spaces"),
        (
            b"a: \x01\n",
            "x.yaml:1:4: `\\x01` may not occur in YAML\n  hint: remove it: a profile is plain text",
        ),
        (
            b"a: \x00\n",
            "x.yaml:1:4: `\\x00` may not occur in YAML\n  hint: remove it: a profile is plain text",
        ),
        (
            rb'a: "b\u001b[31m"',
            "x.yaml:1:4: the text holds `\\x1b`, which nothing can show\n  hint: write it without",
        ),
        (
            rb'a: {"\uFFFE": 1}',
            "x.yaml:1:5: the text holds `\\ufffe`, which nothing can show\n  hint: write it without",
        ),
        (
            b"a: b: c\n",
            "x.yaml:1:5: a second `:` is not allowed here\n"
            "  hint: quote a text that contains `: `, and give the fields of one mapping one indent",
        ),
        (b"a: 1\nb: 2\na: 3\n", "x.yaml:3:1: `a` is written twice\n  hint: the first is on line 1"),
        (
            b"a: !!python/object:os.system x\n",
            "x.yaml:1:4: tags such as `tag:yaml.org,2002:python/object:os.system` are not read\n"
            "  hint: write the plain value",
        ),
        (
            b"a: 1\n---\nb: 2\n",
            "x.yaml:2:1: a second document begins\n  hint: one file, one profile",
        ),
        (b"%YAML 1.1\n---\na: 1\n", "x.yaml:1:1: only YAML 1.2 is read\n  hint: drop `%YAML`"),
        (b"[a]: 1\n", "x.yaml:1:1: a key must be a single word\n  hint: write `name: value`"),
        (b"a: *b\n", f"x.yaml:1:4: `*b` refers to no value above\n  hint: {NO_ANCHOR}"),
        (b"a: &b [*b]\n", f"x.yaml:1:8: `*b` refers to no value above\n  hint: {NO_ANCHOR}"),
        (b"[" * 40, f"x.yaml:1:17: more than 16 levels deep\n  hint: {NOT_A_PROFILE}"),
        (
            b"a: " + b"9" * 5000,
            "x.yaml:1:4: `" + "9" * 77 + "...` is too long\n"
            "  hint: a number has at most 60 digits; quote it if it is a text",
        ),
        (
            b"#" * (MAX_BYTES + 1),
            f"x.yaml:1:1: the file is longer than 1 MiB\n  hint: {NOT_A_PROFILE}",
        ),
        (
            b"a: {b: 1\n",
            "x.yaml:2:1: expected ',' or '}', but got 'stream end'\n"
            "  hint: a quote or bracket is not closed",
        ),
        (
            b"a: @b\n",
            "x.yaml:1:4: found character '@' that cannot start any token\n"
            "  hint: quote a text that begins with a special character",
        ),
    ],
)
def test_wrong_text_is_refused_where_it_is_wrong(data: bytes, expected: str) -> None:
    assert page(data) == expected


def test_all_faults_before_the_end_of_understanding_are_told() -> None:
    assert page(b"a: 1\na: 2\nb: !x 3\nc: {\n") == (
        "x.yaml:2:1: `a` is written twice\n  hint: the first is on line 1\n"
        "x.yaml:3:4: tags such as `!x` are not read\n  hint: write the plain value\n"
        "x.yaml:5:1: expected the node content, but found 'stream end'\n"
        "  hint: a quote or bracket is not closed"
    )


def test_the_page_of_one_file_ends_somewhere() -> None:
    with pytest.raises(ProfileError) as caught:
        read_yaml(b"a: 1\n" * 1000, "x.yaml")
    assert len(caught.value.diagnostics) == 50


def test_keys_are_their_text() -> None:
    assert values("{1: a, true: b, null: c, '': d}") == {
        "1": "a",
        "true": "b",
        "null": "c",
        "": "d",
    }


def test_a_byte_order_mark_is_no_text() -> None:
    assert plain(read_yaml(b"\xef\xbb\xbfa: 1", "x.yaml")) == {"a": 1}


def test_aliases_cannot_become_a_billion_values() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    start = time.perf_counter()
    assert "more than 20000 values" in page("\n".join(lines).encode())
    assert time.perf_counter() - start < 2


def test_a_long_list_ends_at_the_limit() -> None:
    assert "more than 20000 values" in page(b"[" + b"1," * 400_000 + b"1]")


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")),
    )
)
def test_any_bytes_give_a_tree_or_a_page_of_faults(data: bytes) -> None:
    try:
        plain(read_yaml(data, "x.yaml"))
    except ProfileError as error:
        assert error.diagnostics
        assert all(each.line >= 1 and each.column >= 1 for each in error.diagnostics)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab:,-[]{}&*!|>%@`'\"\\#?\n\t 0x1.~UuN\ufeff\u2028", max_size=60))
def test_any_text_of_yaml_signs_gives_a_tree_or_a_page_of_faults(text: str) -> None:
    try:
        plain(read_yaml(text.encode(), "x.yaml"))
    except ProfileError as error:
        assert str(error)
