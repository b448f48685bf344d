"""`Choices`: what a run chose where rounding decides, and choices given to it instead.

A router takes one of two experts that score alike, and FP8 pages one of two codes: what follows from another choice is
no error of arithmetic, and is as large as the choice. Launches are wrapped where a test's faults would be.
"""

from collections.abc import Callable, Mapping
from typing import Any  # operands and results differ by op

import torch
from reference_texts import PAGES, Text

from firmtoken.compiler.program import BoundStep
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.device_rows import DeviceRows

AnyBatch = Batch | DeviceRows
Call = Callable[[AnyBatch], Any]


class Choices:
    """Stands in for an interpreter's `Faults`, before anything is bound; nothing may be captured.

    Texts are shorter than a page, so a page belongs to one request.
    """

    def __init__(self, interpreter: Interpreter, scheduler: Scheduler, kv_dtype: str) -> None:
        self.armed = True
        self.texts: dict[int, Text] = {}
        """Of each request, what it is compared with."""
        self.given_experts = self.given_pages = False
        self.begin()
        self._scheduler = scheduler
        self._kv_dtype = PAGES[kv_dtype]
        interpreter.faults = self

    def begin(self) -> None:
        """Forgets what was seen."""
        self.num_routed = 0
        """Rows of all layers."""
        self.apart: list[float] = []
        """Of each, the largest difference of a router's scores from the reference's."""
        self.other_gaps: list[float] = []
        """Of each row that chose other experts: the reference's gap between its last expert and the next."""

    def wrap(self, call: Call, step: BoundStep, program: str, operands: Mapping[str, Any]) -> Call:
        layer = step.at.get("l", -1)
        if any(value.name == f"{program}.ids" for value in step.writes):
            return lambda batch: self._route(call, batch, layer, operands)
        if "kv" in operands and any(value.name == "kv" for value in step.writes):
            return lambda batch: self._write(call, batch, layer, operands["kv"])
        return call

    def _route(self, call: Call, batch: AnyBatch, layer: int, operands: Mapping[str, Any]) -> None:
        call(batch)
        ids, rows = operands["ids"], self._rows(batch)
        scores = operands["h"][: len(rows)].float() @ operands["router"].float().T
        wanted = torch.stack([self.texts[one].scores[position, layer] for one, position in rows])
        best = wanted.topk(ids.shape[1] + 1)
        given = best.indices[:, :-1]
        chosen = ids[: len(rows)].long().cpu()
        other = (chosen.sort().values != given.sort().values).any(-1)
        self.num_routed += len(rows)
        self.apart += (scores.cpu() - wanted).abs().amax(-1).tolist()
        self.other_gaps += (best.values[:, -2] - best.values[:, -1])[other].tolist()
        if self.given_experts:
            given = given.to(ids.device)
            ids[: len(rows)] = given.to(ids.dtype)
            operands["wts"][: len(rows)] = scores.gather(1, given).softmax(-1)

    def _write(self, call: Call, batch: AnyBatch, layer: int, kv: torch.Tensor) -> None:
        call(batch)
        if not self.given_pages:
            return
        rows = self._rows(batch)
        given = torch.stack(
            [self.texts[one].pages[layer][:, position] for one, position in rows], dim=1
        ).to(self._kv_dtype)
        # As bytes: not every device copies numbers of 8 bits by index.
        pages = kv.view(torch.uint8)
        slots = pages.view(2, -1, *pages.shape[3:])
        slots[:, batch.token_slots[: len(rows)].long()] = given.view(torch.uint8).to(kv.device)

    def _rows(self, batch: AnyBatch) -> list[tuple[int, int]]:
        """Request and position of each row that is not padding; those are the first."""
        owners = {
            page: sequence.request_id
            for sequence in self._scheduler.running
            for page in sequence.pages
        }
        real = batch.real_rows if isinstance(batch, Batch) else int(batch.num_rows)
        page_size = self._scheduler.limits.page_size
        pages = batch.token_slots[:real] // page_size
        positions = batch.positions[:real]
        return [
            (owners[page], position)
            for page, position in zip(pages.tolist(), positions.tolist(), strict=True)
        ]
