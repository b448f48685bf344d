"""The NVFP4 kernels under Triton's interpreter against the definition: a script, run by `test_triton_nvfp4.py`.

    TRITON_INTERPRET=1 python interpreted_nvfp4.py

Activations are bf16, for tiles fp32 with such numbers, because the interpreter's `dot` does not know bf16; outputs are
fp32, because it truncates where a card rounds to bf16.
"""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.head.triton_nvfp4 import head
from firmtoken.runtime.kernels.linear import NVFP4_PRODUCTS
from firmtoken.runtime.kernels.linear.triton_nvfp4 import linear
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.nvfp4 import dequantise

BY_ROWS = {**dict(NVFP4_PRODUCTS), "few": 99, "early": False}
BY_TILES = {**dict(NVFP4_PRODUCTS), "few": 0, "early": False}
NOT_A_NUMBER = (127, 255)
GUARD = 16


def random_matrix(num_outputs: int, starts: tuple[int, ...], width: int) -> PackedMatrix:
    return PackedMatrix(
        packed=torch.randint(0, 256, (num_outputs, width // 2), dtype=torch.uint8),
        scale=torch.randint(0, 127, (num_outputs, width // 16), dtype=torch.uint8),
        globals=torch.rand(len(starts) + 1) * 1e-4,
        starts=starts,
    )


def weights(w: PackedMatrix) -> torch.Tensor:
    """fp64 [N, K]"""
    num_outputs = w.packed.shape[0]
    ends = (*w.starts, num_outputs)
    sizes = torch.tensor([end - start for start, end in zip((0, *w.starts), ends, strict=True)])
    one = dequantise(w.packed, w.scale.view(torch.float8_e4m3fn), 1.0).double()
    return one * w.globals.double().repeat_interleave(sizes).unsqueeze(1)


def poisoned(num_rows: int, num_outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """NaN to write over, and all of it, with a guard on both sides that nobody may touch."""
    whole = torch.full((num_rows * num_outputs + 2 * GUARD,), float("nan"))
    return whole[GUARD:-GUARD].view(num_rows, num_outputs), whole


def close(y: torch.Tensor, whole: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    error = (y - x @ w.T).abs() / (x.abs() @ w.abs().T)
    assert error.max() < 2**-20, float(error.max())
    assert whole[:GUARD].isnan().all() and whole[-GUARD:].isnan().all()


def check_every_code_with_every_scale() -> None:
    """Unit vectors read one weight each, and nothing may be rounded."""
    scales = [byte for byte in range(256) if byte not in NOT_A_NUMBER]
    pairs = torch.tensor([low | (low + 1) << 4 for low in range(0, 16, 2)], dtype=torch.uint8)
    w = PackedMatrix(
        packed=pairs.repeat(len(scales), 8),
        scale=torch.tensor(scales, dtype=torch.uint8).unsqueeze(1).repeat(1, 8),
        globals=torch.ones(1),
    )
    wanted = dequantise(w.packed, w.scale.view(torch.float8_e4m3fn), 1.0).T
    units = torch.eye(128)
    y, _ = poisoned(128, len(scales))
    linear(None, x=units, w=w, y=y, **BY_TILES)
    assert torch.equal(y, wanted)
    # Rows take an interpreter longer: each code with one scale, each scale with one code.
    few = PackedMatrix(packed=w.packed[70:74], scale=w.scale[70:74], globals=w.globals)
    y, _ = poisoned(16, 4)
    linear(None, x=units[:16].bfloat16(), w=few, y=y, **BY_ROWS)
    assert torch.equal(y, wanted[:16, 70:74])
    y, _ = poisoned(1, len(scales))
    linear(None, x=units[7:8].bfloat16(), w=w, y=y, **BY_ROWS)
    assert torch.equal(y, wanted[7:8])


def check_shapes() -> None:
    """Rows for each build and beyond, outputs that fill no program, widths that end within a warp, joined parts."""
    shapes = (
        (19, (5, 7), 272, (1, 2, 5, 9)),
        (1, (), 16, (1, 9)),
        (5, (1, 2, 4), 528, (2, 5)),
    )
    for num_outputs, starts, width, rows in shapes:
        w = random_matrix(num_outputs, starts, width)
        for num_rows in rows:
            x = torch.randn(num_rows, width + 8)[:, :width].bfloat16()
            y, whole = poisoned(num_rows, num_outputs)
            linear(None, x=x, w=w, y=y, **BY_ROWS)
            close(y, whole, x.double(), weights(w))


def check_tiles() -> None:
    """The same for tiles, with and without a norm."""
    for num_outputs, starts, width in ((37, (5, 21), 256), (1, (), 128)):
        w, norm = random_matrix(num_outputs, starts, width), torch.rand(width) + 0.5
        for num_rows in (1, 4, 5, 9, 17):
            x = torch.randn(num_rows, width + 8).bfloat16().float()[:, :width]
            y, whole = poisoned(num_rows, num_outputs)
            linear(None, x=x, w=w, y=y, **BY_TILES)
            close(y, whole, x.double(), weights(w))
            logits, whole = poisoned(num_rows, num_outputs)
            head(None, last=x, norm=norm, w=w, logits=logits, eps=1e-6, **BY_TILES)
            close(logits, whole, rms_norm(x.double(), (width,), norm.double(), 1e-6), weights(w))


def check_that_narrow_weights_go_by_rows() -> None:
    """A width that tiles cannot have is right all the same."""
    w, x = random_matrix(3, (), 80), torch.randn(2, 80)
    y, whole = poisoned(2, 3)
    linear(None, x=x, w=w, y=y, **BY_TILES)
    close(y, whole, x.double(), weights(w))


def check_head() -> None:
    """The norm is part of it, whatever the size of the numbers."""
    w, norm = random_matrix(21, (), 272), torch.rand(272) + 0.5
    for num_rows in (1, 3):
        last = (
            torch.randn(num_rows, 272) * 10.0 ** torch.arange(-3, num_rows - 3)[:, None]
        ).bfloat16()
        logits, whole = poisoned(num_rows, 21)
        head(None, last=last, norm=norm, w=w, logits=logits, eps=1e-6, **BY_ROWS)
        close(logits, whole, rms_norm(last.double(), (272,), norm.double(), 1e-6), weights(w))


def check_large_and_small() -> None:
    """What comes in at the ends of the range that the file promises comes out right."""
    w = random_matrix(16, (), 128)
    for exponent in (-60, 60):
        x = (torch.randn(2, 128) * 2.0**exponent).bfloat16()
        for given, constants in ((x, BY_ROWS), (x.float(), BY_TILES)):
            y, whole = poisoned(2, 16)
            linear(None, x=given, w=w, y=y, **constants)
            close(y, whole, x.double(), weights(w))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    check_every_code_with_every_scale()
    check_shapes()
    check_tiles()
    check_that_narrow_weights_go_by_rows()
    check_head()
    check_large_and_small()
