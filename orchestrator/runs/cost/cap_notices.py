"""Notices when 50, 80 and 100 % of a cap are spent, once per day, month or project cap. The book records a notice
before it is sent; one that failed is sent by the next command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from orchestrator.money.book import State
from orchestrator.runs.cost.outlook import Outlook, outlook
from orchestrator.runs.notify.notices import Notice, of_cap
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
        said = services.notifier.send(_notice(reached, found))
        if said:
            _mark(services, reached, "failed")
        problems += said
    return problems


def _reached(found: Outlook) -> Iterator[_Reached]:
    budget, now = found.budget, datetime.fromtimestamp(found.now, found.budget.zone)
    caps = (
        ("day", f"{now:%Y-%m-%d}", budget.per_day_usd, found.until_now.day),
        ("month", f"{now:%Y-%m}", budget.per_month_usd, found.until_now.month),
        ("project", "", budget.project_usd, found.until_now.project),
    )
    for name, window, cap, spent in caps:
        percent = 0 if cap is None else next((p for p in PERCENTS if spent >= cap * p / 100 - 1e-9), 0)
        if cap is not None and percent:
            yield _Reached(name, window, cap, percent, spent)


def _notice(reached: _Reached, found: Outlook) -> Notice:
    return of_cap(reached.cap, reached.percent, reached.usd, reached.spent_usd, found.reserved_beyond_now)


def _claim(services: Services, reached: _Reached) -> bool:
    """Whether this process is to send it; then the smaller parts of the same cap are not sent any more."""
    with services.spending.changing() as change:
        known, project = _known(change.state), services.spending.scope.project
        if known.get(reached.key(project, reached.percent), "failed") != "failed":
            return False
        for percent in PERCENTS:
            if percent <= reached.percent:
                change.add("notice", _line(services, reached.key(project, percent), "sent"))
    return True


def _mark(services: Services, reached: _Reached, state: str) -> None:
    with services.spending.changing() as change:
        key = reached.key(services.spending.scope.project, reached.percent)
        change.add("notice", _line(services, key, state))


def _line(services: Services, key: str, state: str) -> dict[str, object]:
    return {"key": key, "state": state, "at": services.clock.now()}


def _known(state: State) -> dict[str, str]:
    return {str(line.data.get("key")): str(line.data.get("state")) for line in state.lines("notice")}
