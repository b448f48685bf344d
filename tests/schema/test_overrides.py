"""`--set field=value`."""

import pytest

from firmtoken.schema.diagnostic import Diagnostic, ProfileError
from firmtoken.schema.load import load_profile
from firmtoken.schema.overrides import read_override
from firmtoken.schema.tree import MapNode, plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("serving.context=128k", {"serving": {"context": "128k"}}),
        ("serving.requests=8", {"serving": {"requests": 8}}),
        ("graphs=off", {"graphs": "off"}),
        (" serving.pool = auto ", {"serving": {"pool": "auto"}}),
        ("server.api_keys=null", {"server": {"api_keys": None}}),
        ("server.api_keys=", {"server": {"api_keys": None}}),
        ("cache={type: none, page_size: 16}", {"cache": {"type": "none", "page_size": 16}}),
        ("name=a=b", {"name": "a=b"}),
        ("name='64k'", {"name": "64k"}),
        ("kernels.gdn=torch", {"kernels": {"gdn": "torch"}}),
        ("kernels.gdn.decode=torch", {"kernels": {"gdn.decode": "torch"}}),
        ("kernels.gdn.avoid=[a, b]", {"kernels": {"gdn": {"avoid": ["a", "b"]}}}),
        ("kernels.gdn.decode.avoid=[a]", {"kernels": {"gdn.decode": {"avoid": ["a"]}}}),
        ("hardware.software.torch=2.10", {"hardware": {"software": {"torch": "2.10"}}}),
        ("hardware.software.torch='2.10'", {"hardware": {"software": {"torch": "2.10"}}}),
        ("hardware.software.driver=580", {"hardware": {"software": {"driver": "580"}}}),
        ("hardware.software.torch=null", {"hardware": {"software": {"torch": None}}}),
        (
            "hardware.gpu.compute_capability=8.9",
            {"hardware": {"gpu": {"compute_capability": "8.9"}}},
        ),
        ("kernels={gdn.decode: torch}", {"kernels": {"gdn.decode": "torch"}}),
    ],
)
def test_an_override_is_a_tree_with_one_value(text: str, value: object) -> None:
    node = read_override(text, 1)
    assert isinstance(node, MapNode)
    assert plain(node) == value


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (
            "serving.context",
            "--set: expected `field=value`, found `serving.context`\n"
            "  hint: for example `--set serving.context=64k`",
        ),
        (
            "=3",
            "--set: expected `field=value`, found `=3`\n"
            "  hint: for example `--set serving.context=64k`",
        ),
        (
            "a..b=3",
            "--set: expected `field=value`, found `a..b=3`\n"
            "  hint: for example `--set serving.context=64k`",
        ),
        (
            "cache={type: none",
            "--set: `cache`: expected ',' or '}', but got 'stream end'\n"
            "  hint: a quote or bracket is not closed",
        ),
        (
            "name=!x y",
            "--set: `name`: tags such as `!x` are not read\n  hint: write the plain value",
        ),
    ],
)
def test_a_wrong_override_is_refused(text: str, page: str) -> None:
    found = read_override(text, 1)
    assert isinstance(found, Diagnostic)
    assert str(found) == page


@pytest.mark.parametrize(("field", "example"), [("server.port", 1919), ("serving.requests", 8)])
def test_an_example_of_a_whole_number_is_one_that_people_write(field: str, example: int) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("tiny-cpu", (f"{field}=abc",))
    assert f"write digits, for example `{example}`" in str(caught.value)
