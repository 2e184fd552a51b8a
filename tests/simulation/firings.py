"""A schedule of firings in an episode: the true ticks decide, and each firing is a process that goes on beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.hosts.recover import recover
from orchestrator.money.caps import FENCE_LATENESS_S
from orchestrator.runs.reopen import known
from orchestrator.runs.services import Services
from orchestrator.schedules import fire as firing_of
from orchestrator.schedules.due import Firing, Schedule
from orchestrator.schedules.fire import FiringRecords
from tests.simulation.accounts import RATE, same_window, spent_by
from tests.simulation.schedule import FiringPlan
from tests.simulation.starts import start_run
from tests.simulation.world import Actor, Killed, Violation, World

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

NAME = "nightly"
DECIDED = ("started", "missed", "overlap", "refused")


class CountedRecords(FiringRecords):
    """The real record of firings; a process may be killed at each line that it writes there."""

    def __init__(self, results: Path, world: World, actor: Actor) -> None:
        super().__init__(results)
        self._world, self._actor = world, actor

    def append(self, name: str, firings: tuple[Firing, ...]) -> None:
        write = super().append
        what = " ".join(firing.outcome for firing in firings)
        self._world.effect(self._actor, f"firing {what}", lambda: write(name, firings), via="disk")


@dataclass
class Fired:
    """What the firings of an episode did, as whoever judges it knows."""

    plan: FiringPlan
    #: By the time that was due: how often its job was run, and whether that ended in an error.
    ran: Counter[float] = field(default_factory=Counter)
    failed: set[float] = field(default_factory=set)
    last_tick: float = 0.0

    @property
    def schedule(self) -> Schedule:
        minutes = "0" if self.plan.every_minutes == 60 else f"*/{self.plan.every_minutes}"
        return Schedule(
            job="bench", on="l4", cron=f"{minutes} * * * *", timezone="UTC", budget_usd=self.plan.budget_usd,
            per_month_usd=self.plan.per_month_usd,
        )  # fmt: skip

    def due_between(self, after: float, until: float) -> list[float]:
        """The times that are due in (``after``, ``until``], by arithmetic."""
        step = self.plan.every_minutes * 60.0
        return [n * step for n in range(int(after // step) + 1, int(until // step) + 1)]


def tick(episode: Episode, services: Services, workspace: Workspace, actor: Actor) -> None:
    """``fcctl schedule tick``, as :func:`orchestrator.app.tick` has it."""
    fired = episode.fired
    records = CountedRecords(workspace.root / "results", episode.world, actor)

    def launch(_: str, firing: Firing) -> None:
        check_firing_starts(episode, records, firing)
        episode.company.join(lambda: _fire(episode, workspace, firing))

    now = episode.world.now
    spending, budget = services.spending, episode.budget
    firing_of.Scheduler({NAME: fired.schedule}, records, spending, budget, services.clock).tick(launch)
    fired.last_tick = now
    left = [run.run_id for run in known(services) if run.state == "interrupted"]
    if left or services.store.pending_releases():
        recover(services, left, releases="due")


def _fire(episode: Episode, workspace: Workspace, firing: Firing) -> None:
    """The process that a tick launched; the run in it is another one, and they die together."""
    fired, name = episode.fired, name_of(firing.due)
    actor = Actor(name)
    records = CountedRecords(workspace.root / "results", episode.world, actor)
    services = episode.services(actor, workspace)

    def run_job(schedule: Schedule, of_firing: str) -> Mapping[str, Any]:
        fired.ran[firing.due] += 1
        if fired.ran[firing.due] > 1:
            raise Violation(f"the firing of {firing.due:.0f} runs a second time")
        answer: list[Mapping[str, Any]] = []
        budget = episode.with_caps(per_run_usd=schedule.budget_usd)

        def run(services: Services, _: Actor) -> None:
            finished = start_run(episode, services, workspace, budget=budget)
            answer.append(finished.record.model_dump(mode="json") if finished is not None else {})

        _, ending = episode.process(name, workspace, run, firing=of_firing)
        episode.note(f"{name}: {ending}")
        if ending == "killed" and not fired.plan.strictly:
            raise Killed
        if not answer:
            fired.failed.add(firing.due)
        return answer[0] if answer else {"error": {"message": ending, "exit_code": 1}}

    spending, budget = services.spending, services.budget
    schedules = firing_of.Scheduler({NAME: fired.schedule}, records, spending, budget, services.clock)
    with suppress(KeyboardInterrupt):  # it ends this process, as a kill does
        schedules.fire(NAME, firing.due, run_job)


def name_of(due: float) -> str:
    return f"firing-{due:.0f}"


# ------------------------------------------------------------------------------------------------- what must hold
def check_firing_starts(episode: Episode, records: FiringRecords, firing: Firing) -> None:
    """The month's cap has room for what this firing may cost, beside what the others of the month did cost, or may
    still cost."""
    fired = episode.fired
    record = records.read(NAME)
    ended = {one.due for one in record if one.outcome == "finished"}
    # One that was interrupted costs what its run did cost, once that is booked.
    booked = episode.services(Actor("judge")).spending.state().runs()
    ended |= {one.due for one in record if episode.run_of.get(name_of(one.due), "") in booked}
    gone = {one.due for one in record if one.outcome == "interrupted"}
    ended |= {due for due in gone if name_of(due) not in episode.reserved_by}  # nothing can have started
    total = 0.0
    for due in {one.due for one in record if one.outcome == "started"} - {firing.due}:
        if not same_window("month", due, firing.due):
            continue
        spent = spent_by(episode, name_of(due))
        total += spent if due in ended else max(spent, fired.plan.budget_usd)
    late = (FENCE_LATENESS_S + episode.world.stop_seconds) * len(ended) / 3600 * RATE
    cap, budget = fired.plan.per_month_usd, fired.plan.budget_usd
    if total + budget > cap + late + 1e-6:
        raise Violation(f"a firing of ${budget} starts, and its schedule spent ${total:.4f} of the month's ${cap}")


def check_firings(episode: Episode) -> None:
    """At the end: each time that was due was decided once, each firing that started has an end."""
    fired = episode.fired
    record = FiringRecords(episode.here.root / "results").read(NAME)
    if not record:
        return
    step = fired.plan.every_minutes * 60.0  # a refusal that is repeated is one line, with how often
    decided = Counter(f.due - n * step for f in record if f.outcome in DECIDED for n in range(f.count))
    expected = fired.due_between(record[0].due, fired.last_tick)
    lost, twice = set(expected) - set(decided), [due for due, count in decided.items() if count > 1]
    if lost:
        raise Violation(f"the firing of {min(lost):.0f} is lost: nothing says what became of it")
    if twice or set(decided) - set(expected):
        raise Violation(f"firings that were not due, or decided twice: {twice or set(decided) - set(expected)}")
    ended = {firing.due for firing in record if firing.outcome in ("finished", "interrupted")}
    open_ = {firing.due for firing in record if firing.outcome == "started"} - ended
    if open_:
        raise Violation(f"the firing of {min(open_):.0f} has no end, hours later")
    excused = fired.failed | _left_on(episode, record)
    for firing in record:
        if firing.outcome == "finished" and firing.due not in excused and firing.run_id is not None:
            _check_recorded(episode, firing)


def _left_on(episode: Episode, record: list[Firing]) -> set[float]:
    """The firings whose machine could not be stopped when its run was over."""
    store = episode.stores()[0]
    runs = {firing.due: firing.run_id for firing in record if firing.run_id is not None}
    return {due for due, run in runs.items() if any(e.kind == "unreleased" for e in store.journal_of(run or ""))}


def _check_recorded(episode: Episode, firing: Firing) -> None:
    """What a firing's end says it cost is what it did cost."""
    spent, recorded = spent_by(episode, name_of(firing.due)), firing.usd or 0.0
    late = (FENCE_LATENESS_S + 60.0 + episode.world.stop_seconds) / 3600 * RATE
    if recorded < spent - late:
        raise Violation(f"the firing of {firing.due:.0f} is recorded with ${recorded:.4f}, and did cost ${spent:.4f}")
