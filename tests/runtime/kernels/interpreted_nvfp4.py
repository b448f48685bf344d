"""The NVFP4 kernel under Triton's interpreter against the definition: a script, run by `test_triton_nvfp4.py`.

    TRITON_INTERPRET=1 python interpreted_nvfp4.py

Activations are bf16, which the kernel widens itself; outputs are fp32, because the interpreter truncates where a card
rounds to bf16.
"""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.head import NVFP4_ROWS
from firmtoken.runtime.kernels.head.triton_nvfp4 import head
from firmtoken.runtime.kernels.linear.triton_nvfp4 import PackedMatrix, linear
from firmtoken.runtime.kernels.nvfp4 import dequantise

CARD = dict(NVFP4_ROWS)
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
        packed=pairs.repeat(len(scales), 1),
        scale=torch.tensor(scales, dtype=torch.uint8).unsqueeze(1),
        globals=torch.ones(1),
    )
    y, _ = poisoned(16, len(scales))
    linear(None, x=torch.eye(16).bfloat16(), w=w, y=y, **CARD)
    wanted = dequantise(w.packed, w.scale.view(torch.float8_e4m3fn), 1.0).T
    assert torch.equal(y, wanted)


def check_shapes() -> None:
    """Rows for each build and beyond, outputs that fill no program, widths that end within a warp, joined parts."""
    shapes = ((37, (5, 21), 272), (1, (), 16), (21, (1, 2, 20), 528))
    for num_outputs, starts, width in shapes:
        w = random_matrix(num_outputs, starts, width)
        for num_rows in (1, 2, 5, 9):
            x = torch.randn(num_rows, width + 8)[:, :width].bfloat16()
            y, whole = poisoned(num_rows, num_outputs)
            linear(None, x=x, w=w, y=y, **CARD)
            close(y, whole, x.double(), weights(w))


def check_head() -> None:
    """The norm is part of it, whatever the size of the numbers."""
    w, norm = random_matrix(21, (), 272), torch.rand(272) + 0.5
    for num_rows in (1, 3):
        last = (
            torch.randn(num_rows, 272) * 10.0 ** torch.arange(-3, num_rows - 3)[:, None]
        ).bfloat16()
        logits, whole = poisoned(num_rows, 21)
        head(None, last=last, norm=norm, w=w, logits=logits, eps=1e-6, **CARD)
        close(logits, whole, rms_norm(last.double(), (272,), norm.double(), 1e-6), weights(w))


def check_large_and_small() -> None:
    """What comes in at the ends of the range that the file promises comes out right."""
    w = random_matrix(16, (), 64)
    for exponent in (-60, 60):
        x = (torch.randn(2, 64) * 2.0**exponent).bfloat16()
        y, whole = poisoned(2, 16)
        linear(None, x=x, w=w, y=y, **CARD)
        close(y, whole, x.double(), weights(w))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    check_every_code_with_every_scale()
    check_shapes()
    check_head()
    check_large_and_small()
    print("right")
