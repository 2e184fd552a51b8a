"""The check of stream order, on a make-believe device whose streams do their work when they are waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashcore import check, reference, separate, shapes
from flashcore.errors import LaunchFailed

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


class Forger:
    """A process whose every answer is ``reply``."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self._reply = separate.Reply(reply)

    def ask(self, op: str, **what: Any) -> separate.Reply:
        return self._reply


@pytest.mark.parametrize("reply", [{}, {"launches": None}, {"launches": "3"}, {"launches": True}, {"launches": 1e9}])
def test_a_number_is_a_whole_number(reply: dict[str, Any]) -> None:
    assert separate.Reply({"launches": 3}).number("launches") == 3
    with pytest.raises(LaunchFailed, match="process has no launches"):
        separate.Reply(reply).number("launches")


@pytest.mark.parametrize("trials", [None, {}, [1], [["a", [1, 1, 1, 64]]], [["a", ["1"], None]], [["a", [1], 3]]])
def test_trials_are_trials(trials: Any) -> None:
    kernel = separate.Kernel.__new__(separate.Kernel)
    kernel.number = 0
    good = [["another stream", [1, 8, 192, 64, None], None], ["queued", [1, 8, 512, 64], "late"]]
    kernel.runner = Forger({"trials": good})  # type: ignore[assignment]
    assert kernel.streams(1) == good
    kernel.runner = Forger({"trials": trials})  # type: ignore[assignment]
    with pytest.raises(LaunchFailed, match="has no trials"):
        kernel.streams(1)
