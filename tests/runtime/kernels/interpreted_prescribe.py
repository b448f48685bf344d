"""`prescribe` under the interpreter: TRITON_INTERPRET=1 python interpreted_prescribe.py, for `test_prescribe.py`."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.prescribe.triton_rows import prescribe

POSITIONS, K, CONVERSATION = 13, 3, 5
ROWS = [(11, 0), (12, 0), (13, 0), (4, 1), (11, 2), (0, -1)]
"""Position and sequence; the last row is padding."""

routes = torch.arange(POSITIONS * K, dtype=torch.int32).view(POSITIONS, K)
around = torch.full((len(ROWS), K + 2), -1, dtype=torch.int32)
positions, sequences = torch.tensor(ROWS, dtype=torch.int32).T.contiguous()
unread = dict.fromkeys(DeviceRows.__dataclass_fields__, torch.zeros(1, dtype=torch.int32))
rows = DeviceRows(**(unread | {"positions": positions, "sequences": sequences}))
prescribe(rows, ids=around[:, :K], routes=routes, conversation=CONVERSATION)
for at, (position, sequence) in enumerate(ROWS):
    wanted = routes[(position + sequence * CONVERSATION) % POSITIONS].tolist()
    assert around[at].tolist() == ([-1] * K if sequence < 0 else wanted) + [-1, -1], at
