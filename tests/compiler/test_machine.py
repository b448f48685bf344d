"""What a hardware file leaves to the compiler, and what is assumed then."""

import pytest

from firmtoken.compiler.machine import pinnable_bytes
from firmtoken.schema.load import load_profile

WINDOWS, LINUX = "hardware.software.os=windows", "hardware.software.os=linux"
GIB = 2**30


@pytest.mark.parametrize(
    ("overrides", "pinnable"),
    [
        ((LINUX,), 48 * GIB),
        (("hardware.software.os=wsl",), 64 * GIB * 40 // 100),
        ((WINDOWS,), 64 * GIB * 40 // 100),
        (("hardware.software.os=null",), 48 * GIB),
        ((WINDOWS, "hardware.host.pinnable=30GiB"), 30 * GIB),
        ((LINUX, "hardware.host.pinnable=0"), 0),
    ],
)
def test_of_the_host_three_quarters_can_be_pinned_and_less_under_windows(
    overrides: tuple[str, ...], pinnable: int
) -> None:
    asked = ("hardware.host.memory=64GiB", "hardware.host.pinnable=auto", *overrides)
    assert pinnable_bytes(load_profile("ft:4090-qwen", asked).profile.hardware) == pinnable
