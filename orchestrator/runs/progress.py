"""Progress of a project: for each phase its targets, the best measured values, the gaps, and dollars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fcctl_remote.gates import syntax
from fcctl_remote.gates.evaluate import NoValue
from fcctl_remote.gates.evaluate import value as value_of
from orchestrator.base.errors import FcctlError
from orchestrator.base.json_text import pick
from orchestrator.money.ledger import Line
from orchestrator.results.records import GateRecord, RunRecord
from orchestrator.runs.cost.spending import lines
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.phase import Phase
from orchestrator.runs.services import Services

#: Runs of a phase that are looked at, the newest ones.
RUNS = 200

State = Literal["not started", "started", "passed"]
_RISING = {"<": False, "<=": False, ">": True, ">=": True}


@dataclass(frozen=True)
class Goal:
    """One gate of a phase, and how near a run came to it."""

    step: str
    expr: str
    #: What is compared with ``limit``: the gate's left side. Empty if the gate is no such comparison.
    what: str = ""
    op: str = ""
    limit: float | None = None
    #: The best value so far and the run that had it; None if no run could decide the gate.
    best: float | None = None
    run_id: str | None = None
    met: bool | None = None
    #: That run kept the limit, but another gate of the step failed: a fast wrong kernel meets nothing.
    beside_a_failure: bool = False

    @property
    def gap(self) -> float | None:
        """By which share of the limit the best misses it; 0: it is met."""
        if self.met:
            return 0.0
        if self.best is None or not self.limit or self.beside_a_failure:
            return None
        return abs(self.best / self.limit - 1)


@dataclass(frozen=True)
class PhaseProgress:
    name: str
    job: str
    title: str
    state: State
    goals: tuple[Goal, ...]
    runs: int
    #: The newest run that passed.
    passed_run: str | None
    hours: float
    usd: float
    planned_hours: float | None
    planned_usd: float | None

    @property
    def left_usd(self) -> float | None:
        """Dollars still planned; None without a plan."""
        if self.planned_usd is None:
            return None
        return 0.0 if self.is_done else max(0.0, self.planned_usd - self.usd)

    @property
    def open_goals(self) -> list[Goal]:
        """Those that no run has met."""
        return [goal for goal in self.goals if not goal.met]

    @property
    def is_done(self) -> bool:
        return self.state == "passed" and not self.open_goals

    @property
    def main(self) -> Goal | None:
        """The goal that stands for the phase: a time, else a ratio, else one that is not met."""
        named = [goal for part in ("stats.p50", ".ratio") for goal in self.goals if part in goal.what]
        return next(iter([*named, *self.open_goals, *self.goals]), None)


@dataclass(frozen=True)
class Progress:
    phases: tuple[PhaseProgress, ...]
    #: All that the project has spent, dollars, and its cap.
    spent_usd: float
    cap_usd: float | None

    @property
    def other_usd(self) -> float:
        """What no phase's runs cost: other jobs, idle machines, disks."""
        return max(0.0, self.spent_usd - sum(phase.usd for phase in self.phases))

    @property
    def left_usd(self) -> float:
        return sum(phase.left_usd or 0.0 for phase in self.phases)

    @property
    def free_usd(self) -> float | None:
        """What the cap leaves once all that is planned is spent; below 0: the plan does not fit."""
        return None if self.cap_usd is None else self.cap_usd - self.spent_usd - self.left_usd

    def as_json(self) -> dict[str, Any]:
        return {
            "phases": [_phase_json(phase) for phase in self.phases],
            **pick(self, "spent_usd other_usd left_usd cap_usd free_usd"),
        }


def _phase_json(phase: PhaseProgress) -> dict[str, Any]:
    names = "name job title state is_done runs passed_run hours usd planned_hours planned_usd left_usd"
    goals = [pick(goal, "step expr op limit best run_id met beside_a_failure gap") for goal in phase.goals]
    main = phase.main
    return {**pick(phase, names), "target": goals[phase.goals.index(main)] if main else None, "goals": goals}


def progress(services: Services, phases: Mapping[str, tuple[Phase, Job]], usd_per_hour: float | None) -> Progress:
    """Reads the store and the ledger; asks no machine and no cloud. ``phases``: each with its job, by name, in order;
    ``usd_per_hour``: of the machine that the planned hours are for."""
    entries = [line for line in lines(services, until_now=True) if not line.emulated]
    made = tuple(_phase(services, name, *both, entries, usd_per_hour) for name, both in phases.items())
    return Progress(made, sum(line.usd for line in entries), services.budget.project_usd)


def _phase(
    services: Services, name: str, phase: Phase, job: Job, entries: Iterable[Line], usd_per_hour: float | None
) -> PhaseProgress:
    records = list(_records(services, job.job))
    own = [line for line in entries if line.job == job.job]
    passed = next((record.run_id for record in records if record.status == "passed"), None)
    hours = phase.hours
    return PhaseProgress(
        name=name,
        job=job.job,
        title=phase.title or job.title,
        state="passed" if passed else "started" if records else "not started",
        goals=tuple(
            goals([(spec.id, gate.expr) for spec in job.steps for gate in spec.gates if not gate.optional], records)
        ),
        runs=len(records),
        passed_run=passed,
        hours=sum(line.seconds for line in own if line.what is None) / 3600,
        usd=sum(line.usd for line in own),
        planned_hours=hours,
        planned_usd=phase.usd
        if phase.usd is not None or hours is None or usd_per_hour is None
        else hours * usd_per_hour,
    )


def _records(services: Services, job: str) -> Iterator[RunRecord]:
    """The runs on real machines, newest first."""
    for row in services.store.rows(limit=RUNS, job=job):
        try:
            record = services.store.get(row.run_id)
        except FcctlError:  # damaged, or just pruned
            continue
        if not record.cost.emulated:
            yield record


def target_of(record: RunRecord) -> Goal | None:
    """The target of one run: a limit that it missed, else a time or a ratio that it had to keep."""
    gates = [(step.id, gate.expr) for step in record.steps for gate in step.gates if not gate.optional]
    measured = [goal for goal in goals(gates, [record]) if goal.best is not None and goal.limit is not None]
    named = [goal for goal in measured if goal.what.endswith(("stats.p50", ".ratio"))]
    return next(iter([*(goal for goal in measured if goal.met is False), *named]), None)


def goals(gates: Sequence[tuple[str, str]], records: Iterable[RunRecord]) -> Iterator[Goal]:
    """Each of ``gates`` (step and expression) with the best that ``records`` have of it. One that did not apply to what
    a passed run did is none; one that is for another machine stays open."""
    decided: dict[tuple[str, str], list[_Decided]] = {}
    dropped: set[tuple[str, str]] = set()
    for record in records:
        for step in record.steps:
            failed = [gate for gate in step.gates if gate.verdict == "fail"]
            for gate in step.gates:
                if gate.verdict in ("pass", "fail"):
                    beside = any(one is not gate for one in failed)
                    decided.setdefault((step.id, gate.expr), []).append(_Decided(record.run_id, gate, beside))
                elif (
                    gate.verdict == "not_applicable" and record.status == "passed" and "host." not in (gate.when or "")
                ):
                    dropped.add((step.id, gate.expr))
    for step_id, expr in gates:
        if (step_id, expr) in decided or (step_id, expr) not in dropped:
            yield _goal(Goal(step_id, expr, *_limit(expr)), decided)


@dataclass(frozen=True)
class _Decided:
    """A gate as a run decided it."""

    run_id: str
    gate: GateRecord
    beside_a_failure: bool

    @property
    def is_met(self) -> bool:
        return self.gate.verdict == "pass" and not self.beside_a_failure


def _goal(goal: Goal, decided: Mapping[tuple[str, str], list[_Decided]]) -> Goal:
    """``goal`` with the best that the runs have of it: of those without another failure first."""
    found = decided.get((goal.step, goal.expr), [])
    if not found:
        return goal
    best = min(found, key=lambda one: (not one.is_met, one.beside_a_failure, _badness(goal, one.gate)))
    beside = best.beside_a_failure and best.gate.verdict == "pass"
    return replace(goal, best=_number(best.gate.value), run_id=best.run_id, met=best.is_met, beside_a_failure=beside)


def _badness(goal: Goal, gate: GateRecord) -> float:
    number = _number(gate.value)
    if number is None or goal.op not in _RISING:
        return 0.0
    return -number if _RISING[goal.op] else number


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None


def _limit(expr: str) -> tuple[str, str, float | None]:
    """The left side, the operator and the limit of ``LEFT < NUMBER``; empty ones if the gate is something else."""
    try:
        node = syntax.parse(expr)
        if not isinstance(node, syntax.Comparison) or len(node.ops) != 1:
            return "", "", None
        left, right = node.operands
        if syntax.mentions_document(right) or not syntax.mentions_document(left):
            return "", "", None
        limit = _number(value_of(right, {}))
    except (syntax.GateError, NoValue):
        return "", "", None
    (op,) = node.ops
    return expr.partition(op)[0].strip(), op, limit
