"""The NVFP4 kernel for GPUs computes what the format says, as far as that can be seen without one."""

from tests.runtime.kernels.interpreter import interpret


def test_it_is_right_under_the_interpreter() -> None:
    interpret("interpreted_nvfp4.py")
