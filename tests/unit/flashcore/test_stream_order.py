"""The check of stream order, on a make-believe device whose streams do their work when they are waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashcore import check, reference, shapes

SHAPE = shapes.Shape(1, 2, 16, 64)
late: list[Callable[[], object]] = []


class Kernel:
    """Attention that, by ``how``, works in order, before the queue did, or after its stream is done."""

    variant = SimpleNamespace(device="cpu", head_dims=(64,), eight_bits=False)
    built = SimpleNamespace(configuration={})

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor) -> None:
        if self.how == "before":
            q = torch.full_like(q, float("nan"))
        if self.how == "late":
            late.append(lambda: out.copy_(reference.sdpa(q, k, v)))
        else:
            out.copy_(reference.sdpa(q, k, v))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    slept: list[int] = []

    @contextlib.contextmanager
    def stream(_stream: Any) -> Iterator[None]:
        yield

    def synchronize() -> None:
        while late:
            late.pop()()

    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append, raising=False)
    return slept


def test_a_kernel_in_order_passes_after_a_rehearsal(device: list[int]) -> None:
    trial = check._queued(Kernel("in order"), SHAPE, 1)  # type: ignore[arg-type]
    assert trial.fault is None
    assert device == [check.REHEARSAL_CLOCKS, check.WAIT_CLOCKS]


@pytest.mark.parametrize("how", ["before", "late"])
def test_a_kernel_out_of_order_fails(how: str, device: list[int]) -> None:
    trial = check._queued(Kernel(how), SHAPE, 1)  # type: ignore[arg-type]
    assert "NaN" in str(trial.fault)
    assert "caller's stream" in str(trial.fault)
    assert late == []
