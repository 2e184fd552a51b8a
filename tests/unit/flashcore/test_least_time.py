"""A median that the other process's clock does not allow is refused; one slow answer of that clock refuses nobody."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from flashcore import sampling
from flashcore.errors import AuditFailed
from flashcore.shapes import Shape

SHAPE = Shape(1, 8, 512, 64)


def subject(monkeypatch: pytest.MonkeyPatch, hot: Sequence[float], cold: Sequence[float]) -> Any:
    """A kernel whose launches take so many microseconds by our clock, asked for the first time, the second, .."""
    answers = {"hot": iter(hot), "cold": iter(cold)}
    heated: list[bool] = []

    def least_us(way: str, heat_s: float) -> float:
        heated.append(heat_s > 0)
        return next(answers[way])

    def source(way: str, *_: object) -> Any:
        timer = SimpleNamespace(least_us=lambda heat_s: least_us(way, heat_s))
        return SimpleNamespace(timer=lambda *_: timer)

    monkeypatch.setattr(sampling, "Source", source)
    monkeypatch.setattr(sampling, "places", lambda *_: None)
    return SimpleNamespace(least={}, variant=SimpleNamespace(device="cuda"), heated=heated)


def test_one_answer_of_a_gpu_that_was_idle_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = subject(monkeypatch, hot=[6.34, 4.4], cold=[9.0, 7.0])
    assert sampling.refuse_impossible(kernel, SHAPE, "hot", 4.27) == pytest.approx(0.8 * 4.4)
    assert kernel.heated == [False, False, True, True]
    assert sampling.refuse_impossible(kernel, SHAPE, "cold", 6.0) == pytest.approx(0.8 * 7.0)  # it is not asked again


@pytest.mark.parametrize(("mode", "p50"), [("hot", 2.0), ("cold", 5.0), ("eager", 3.0)])
def test_what_no_answer_allows_is_refused(monkeypatch: pytest.MonkeyPatch, mode: str, p50: float) -> None:
    kernel = subject(monkeypatch, hot=[4.4] * 4, cold=[7.0, 6.9, 7.0, 7.1])
    with pytest.raises(AuditFailed, match="another process measured at least"):
        sampling.refuse_impossible(kernel, SHAPE, mode, p50)
    assert len(kernel.heated) == 8
