"""How a fault is shown."""

from firmtoken.schema.diagnostic import (
    SET,
    Diagnostic,
    Fault,
    Place,
    ProfileError,
    diagnose,
    did_you_mean,
    literal,
)

FAULT = Fault(code="unknown", message="unknown field `page_sise`", hint="did you mean `page_size`?")


def test_a_diagnostic_names_place_field_fault_and_remedy() -> None:
    found = diagnose(FAULT, Place(file="bad.yaml", line=3, column=5), "cache.page_sise")
    assert str(found) == (
        "bad.yaml:3:5: `cache.page_sise`: unknown field `page_sise`\n"
        "  hint: did you mean `page_size`?"
    )


def test_a_fault_of_the_file_names_no_field() -> None:
    found = Diagnostic(file="a.yaml", line=1, column=1, field="", message="the file is empty")
    assert str(found) == "a.yaml:1:1: the file is empty"


def test_a_value_from_the_command_line_has_no_line() -> None:
    found = Diagnostic(file=SET, line=2, column=1, field="serving.pool", message="too small")
    assert str(found) == "--set: `serving.pool`: too small"


def test_a_fault_of_the_argument_has_no_place() -> None:
    found = Diagnostic(file="", line=1, column=1, field="", message="there is no file `x.yaml`")
    assert str(found) == "there is no file `x.yaml`"


def test_an_error_carries_each_diagnostic_once() -> None:
    place = Place(file="a.yaml", line=1, column=1)
    one, two = diagnose(FAULT, place, "a"), diagnose(FAULT, place, "b")
    error = ProfileError([one, two, one])
    assert error.diagnostics == (one, two)
    assert str(error) == f"{one}\n{two}"


def test_a_literal_is_short_and_harmless() -> None:
    assert literal("a`b\x1b[31m\n\ud800") == r"a'b\x1b[31m\n\ud800"
    assert literal("x" * 500) == "x" * 77 + "..."


def test_a_file_name_cannot_speak_to_the_terminal() -> None:
    assert str(Place(file="a\x1b[31m.yaml", line=1, column=1)) == r"a\x1b[31m.yaml:1:1"


def test_only_a_near_word_is_suggested() -> None:
    assert did_you_mean("contxt", ["context", "pool"]) == "did you mean `context`?"
    assert did_you_mean("MAX", ["max", "auto"]) == "did you mean `max`?"
    assert did_you_mean("zebra", ["context", "pool"]) is None
