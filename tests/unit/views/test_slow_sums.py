"""Sums of a long ledger are made seldom: they must not take the server's time from its pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runs.cost.outlook import MoneyNow
from orchestrator.views.dashboard import site


class Clock:
    """Each sum takes three seconds of it."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any) -> None:
        self.now, self.sums = 100.0, 0
        patch.setattr(module.time, "monotonic", lambda: self.now)

    def add_up(self, *_: object) -> MoneyNow:
        self.now += 3.0
        self.sums += 1
        return MoneyNow()


def test_a_sum_that_took_long_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, context = Clock(monkeypatch, site), SimpleNamespace(_kept={})
    reused = lambda name: site.DashboardContext.reused(context, name, clock.add_up)  # type: ignore[arg-type]  # noqa: E731
    first = reused("by day")
    clock.now += 59.0
    assert reused("by day") is first
    assert reused("by job") is not first
    clock.now += 2.0
    assert reused("by day") is not first
    assert clock.sums == 3


def test_todays_dollars_are_added_up_a_hundredth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, site)
    monkeypatch.setattr(site, "money_now", clock.add_up)
    runs: Any = SimpleNamespace(_count_at=0.0, _services=None, money=None)
    for _ in range(1000):
        site.LiveRuns._count(runs)
        clock.now += site.POLL_S
    assert clock.sums * 3.0 <= 0.011 * (clock.now - 100.0)
