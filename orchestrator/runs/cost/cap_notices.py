"""Notices when 50, 80 and 100 % of a cap are spent, once per day, month or project cap. The book records a notice
before it is sent; one that failed is sent by the next command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from orchestrator.money.book import Change
from orchestrator.runs.cost.outlook import Outlook, outlook
from orchestrator.runs.notify.notices import of_cap
from orchestrator.runs.services import Services

PERCENTS = (100, 80, 50)


@dataclass(frozen=True)
class _Reached:
    """The highest part of one cap that is spent."""

    cap: str  # day, month or project
    window: str
    usd: float
    percent: int
    spent_usd: float

    def key(self, project: str, percent: int) -> str:
        return f"{project}: {percent} % of ${self.usd:g} of the {self.cap} {self.window}".rstrip()


def send_cap_notices(services: Services) -> list[str]:
    """Notifies as ``[notify]`` says; returns one line per failure."""
    if not (services.budget.holds_over_runs and services.notifier.wants("budget")):
        return []
    found = outlook(services)
    problems = []
    for reached in _reached(found):
        if not _claim(services, reached):
            continue
        notice = of_cap(reached.cap, reached.percent, reached.usd, reached.spent_usd, found.reserved_beyond_now)
        said = services.notifier.send(notice)
        if said:
            with services.spending.changing() as change:
                _add(services, change, reached, reached.percent, "failed")
        problems += said
    return problems


def _reached(found: Outlook) -> Iterator[_Reached]:
    now, dates = datetime.fromtimestamp(found.now, found.budget.zone), {"day": "%Y-%m-%d", "month": "%Y-%m"}
    for name, _, cap in found.budget.over_runs:
        spent = found.until_now.of(name)
        percent = next((p for p in PERCENTS if spent >= cap * p / 100 - 1e-9), 0)
        if percent:
            yield _Reached(name, now.strftime(dates.get(name, "")), cap, percent, spent)


def _claim(services: Services, reached: _Reached) -> bool:
    """Whether this process is to send it; then the smaller parts of the same cap are not sent any more."""
    with services.spending.changing() as change:
        known = {str(line.data.get("key")): str(line.data.get("state")) for line in change.state.lines("notice")}
        if known.get(reached.key(services.spending.scope.project, reached.percent), "failed") != "failed":
            return False
        for percent in PERCENTS:
            if percent <= reached.percent:
                _add(services, change, reached, percent, "sent")
    return True


def _add(services: Services, change: Change, reached: _Reached, percent: int, state: str) -> None:
    key = reached.key(services.spending.scope.project, percent)
    change.add("notice", {"key": key, "state": state, "at": services.clock.now()})
