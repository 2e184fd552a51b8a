"""The schedules of a workspace: what a new one must be, what is due now, one firing from its start to its end, and the
record of firings: ``results/schedules/<name>.jsonl``, one flushed line each, and two locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fcctl_remote.base.files import flush, sync_folder, write_all
from orchestrator.base import models
from orchestrator.base.clock import Clock
from orchestrator.base.errors import BudgetError, ConflictError, FcctlError, UsageError
from orchestrator.base.files import disk_errors, make_folders, write_atomic
from orchestrator.base.journal import OwnerLock
from orchestrator.machines.targets import Name, Target
from orchestrator.money import firings as counted
from orchestrator.money.book import FiringCost, SpendingBook
from orchestrator.money.caps import Budget
from orchestrator.money.firings import FIRING
from orchestrator.money.prices.rates import usd_per_hour
from orchestrator.runs.job.files import StepSearch
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.plan import check_settings, check_variants
from orchestrator.schedules.due import Firing, Schedule, decide, is_late, read_past, upcoming

#: A firing that was begun this recently may not have taken its lock yet.
STARTING_S = 120.0

Launch = Callable[[str, Firing], None]
#: Runs the job of a schedule to its end, for the firing of that id; the run's record as JSON, or the error's.
RunJob = Callable[[Schedule, str], Mapping[str, Any]]


@dataclass(frozen=True)
class ScheduleStatus:
    """The status of a schedule, for ``fcctl schedule ls``."""

    name: str
    schedule: Schedule
    next: list[datetime]  # in the schedule's zone
    last: Firing | None
    spent_this_month_usd: float
    running: bool


@dataclass(frozen=True)
class Scheduler:
    """Decides what is due, runs firings and records them."""

    schedules: Mapping[str, Schedule]
    records: FiringRecords
    spending: SpendingBook
    budget: Budget
    clock: Clock

    def tick(self, launch: Launch) -> list[tuple[str, Firing]]:
        """Decides what is due, records it, then launches it. A crash in between leaves an interrupted firing, never
        two; two ticks at once decide once."""
        decided: list[tuple[str, Firing]] = []
        with self.records.deciding() as alone:
            enabled = {name: one for name, one in self.schedules.items() if one.enabled} if alone else {}
            for name, schedule in enabled.items():
                for firing in self._decide(name, schedule):
                    decided.append((name, firing))
                    if firing.outcome == "started":
                        launch(name, firing)
        return decided

    def fire(self, name: str, due: float, run_job: RunJob) -> Firing:
        """Runs one firing that :meth:`tick` launched, and records its end."""
        schedule = self.schedules[name]
        with self.records.firing(name) as alone:
            if alone:
                if (late := is_late(schedule, due, self.clock.now() - STARTING_S)) is not None:
                    answer: Mapping[str, Any] = {"error": {"message": late}, "cost": {"usd": 0.0}}
                else:
                    answer = run_job(schedule, counted.firing_id(self.spending.scope, name, due))
                firing = _ended(schedule, due, answer, self.clock.now())
            else:
                firing = Firing(
                    outcome="finished", due=due, at=self.clock.now(), key=schedule.key, usd=0.0, status="overlap",
                    reason="another firing of this schedule was still active",
                )  # fmt: skip
            self.records.append(name, (firing,))
            if alone:
                self._count_end(name, firing)
        return firing

    def statuses(self, count: int = 3) -> list[ScheduleStatus]:
        """The status of each schedule, with its next ``count`` times."""
        now, state, found = self.clock.now(), self.spending.state(), []
        for name, schedule in self.schedules.items():
            last = next((f for f in reversed(self.records.read(name)) if f.outcome != "watching"), None)
            times = upcoming(schedule, datetime.fromtimestamp(now, UTC), count) if schedule.enabled else []
            spent = counted.spent_in_month(state, self.spending.scope, name, now, self.budget.zone)
            found.append(ScheduleStatus(name, schedule, times, last, spent, self.records.at_work(name)))
        return found

    def _decide(self, name: str, schedule: Schedule) -> tuple[Firing, ...]:
        # Read first: a firing that ends in between has recorded its end before it releases the lock.
        at_work = self.records.at_work(name)
        now, past = self.clock.now(), read_past(schedule, self.records.read(name))
        open_ = past.unfinished
        running = at_work or (open_ is not None and abs(now - open_.at) < STARTING_S)
        due = decide(schedule, past, datetime.fromtimestamp(now, UTC), running=running)
        if open_ is not None and not running:
            reason = "the fcctl process of the firing was killed; the next command recovers its run (fcctl ps)"
            due.insert(0, Firing(outcome="interrupted", due=open_.due, at=now, key=open_.key, reason=reason))
        for one in due:
            if one.outcome in ("interrupted", "missed"):  # a tick that was killed may have counted what is missed now
                self._count_end(name, one)
        firings = tuple(self._within_caps(name, schedule, one) if one.outcome == "started" else one for one in due)
        if firings:
            self.records.append(name, firings)
        return firings

    def _within_caps(self, name: str, schedule: Schedule, firing: Firing) -> Firing:
        """``firing``, counted in the month of its schedule; or refused, if the month's cap does not allow it."""
        per_run, cap, spending = _most_of_one(schedule, self.budget), schedule.per_month_usd, self.spending
        if per_run is None and cap is not None:
            refusal: str | None = (
                "per_month_usd also needs a budget for each run: set budget_usd here or [budget] per_run_usd"
            )
        else:
            usd = per_run or 0.0
            try:
                counted.import_record(
                    spending, name, lambda: self._costs(name, self.records.read(name, whole=True), usd)
                )
                refusal = counted.start(spending, name, firing.due, usd, cap=cap, zone=self.budget.zone)
            except FcctlError as error:  # what is not counted does not start
                refusal = error.one_line
        return firing if refusal is None else firing.model_copy(update={"outcome": "refused", "reason": refusal})

    def _count_end(self, name: str, firing: Firing) -> None:
        """If that cannot be written, the firing still counts its budget."""
        with suppress(FcctlError):
            counted.end(self.spending, name, firing.due, firing.usd)

    def _costs(self, name: str, record: Sequence[Firing], budget_usd: float) -> list[FiringCost]:
        """The firings of a record: each with its cost, or with its budget if that is not known."""
        found: dict[float, FiringCost] = {}
        for firing in record:
            if firing.outcome in ("started", "finished"):
                usd, ended = budget_usd if firing.usd is None else firing.usd, firing.outcome == "finished"
                found[firing.due] = counted.cost_of(self.spending.scope, name, firing.due, usd, ended=ended)
        return list(found.values())


def _most_of_one(schedule: Schedule, budget: Budget) -> float | None:
    """The most that one firing may cost, dollars; None: no cap says."""
    return min((usd for usd in (schedule.budget_usd, budget.per_run_usd) if usd is not None), default=None)


def _ended(schedule: Schedule, due: float, answer: Mapping[str, Any], now: float) -> Firing:
    error, cost = answer.get("error"), answer.get("cost")
    usd = cost["usd"] + cost.get("egress_usd", 0.0) if isinstance(cost, Mapping) and "usd" in cost else None
    ended = Firing(outcome="finished", due=due, at=now, key=schedule.key, usd=usd)
    if isinstance(error, Mapping):
        reason = ": ".join(str(error[key]) for key in ("message", "cause") if error.get(key))
        code = error.get("exit_code")
        update = {"status": "error", "reason": reason, "exit_code": code if isinstance(code, int) else 1}
        return ended.model_copy(update=update)
    return ended.model_copy(update={key: answer.get(key) for key in ("run_id", "status", "exit_code")})


#: With -P, a module of the workspace is not taken for one of Python's.
_FCCTL = (sys.executable, "-P", "-m", "orchestrator.cli.entry")


def launch(workspace: Path, arguments: Sequence[str], log: Path) -> None:
    """Starts ``fcctl ARGUMENTS`` in a session of its own; what it prints is appended to ``log``."""
    with disk_errors("start a firing", log.parent), log.open("ab") as out:
        subprocess.Popen(
            [*_FCCTL, "-C", str(workspace), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=workspace,
        )


def run_job(workspace: Path) -> RunJob:
    """``fcctl run`` of a schedule's job: its record, or the error's object."""

    def run(schedule: Schedule, firing: str) -> Mapping[str, Any]:
        argv = [*_FCCTL, "-C", str(workspace), "--json", "--yes", "run", schedule.job, "--on", schedule.on]
        for key, value in schedule.settings.items():
            argv += ["--set", f"{key}={value}"]
        if schedule.budget_usd is not None:  # beside per_run_usd of [budget]: the smaller one counts
            argv += ["--budget", repr(schedule.budget_usd)]
        env = {**os.environ, FIRING: firing}
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env, cwd=workspace)
        return _object(done.stdout) or _object(done.stderr) or _nothing(done)

    return run


def _object(output: bytes) -> Mapping[str, Any] | None:
    for line in reversed(output.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def _nothing(done: subprocess.CompletedProcess[bytes]) -> Mapping[str, Any]:
    said = done.stderr.decode(errors="replace").strip()[-500:]
    return {"error": {"message": f"fcctl run ended with exit code {done.returncode} and printed no"
    f" result", "cause": said or None,
                      "exit_code": done.returncode}}  # fmt: skip


#: So much of a record is read, from its end.
_NEWEST_BYTES = 4 << 20

#: A firing has recorded its end before it releases its lock; the next one waits so long for that, seconds.
_ENDING_S = 1.0


class FiringRecords:
    """Append-only; safe with many processes, and after a crash in the middle of a line."""

    def __init__(self, results_dir: Path) -> None:
        self._folder = results_dir / "schedules"

    def read(self, name: str, *, whole: bool = False) -> list[Firing]:
        """Returns the schedule's firings, oldest first, without damaged lines; of a long record only the end unless
        ``whole``."""
        try:
            with self._path(name).open("rb") as file:
                file.seek(0 if whole else max(0, os.fstat(file.fileno()).st_size - _NEWEST_BYTES))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        return [firing for line in lines if (firing := _firing(line)) is not None]

    def append(self, name: str, firings: tuple[Firing, ...]) -> None:
        """On disk when this returns. A refusal for the same reason as the one before it only raises its count."""
        with disk_errors("write a schedule's record", self._folder):
            make_folders(self._folder)
            path = self._path(name)
            if len(firings) == 1 and firings[0].outcome == "refused" and self._counted(path, firings[0]):
                return
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                # A line that a crash cut short must not swallow this one; an empty line more is nothing.
                text = "".join(f"{json.dumps(f.model_dump(exclude_none=True))}\n" for f in firings)
                write_all(fd, f"\n{text}".encode() if _torn(fd) else text.encode())
                flush(fd)
            finally:
                os.close(fd)
            sync_folder(self._folder)

    def _counted(self, path: Path, refused: Firing) -> bool:
        """Whether the last line is the same refusal, and has it counted now."""
        try:
            before, _, last = path.read_bytes().rstrip(b"\n").rpartition(b"\n")
        except FileNotFoundError:
            return False
        known = _firing(last)
        same = ("outcome", "reason", "key")
        if known is None or any(getattr(known, name) != getattr(refused, name) for name in same):
            return False
        line = json.dumps(refused.model_copy(update={"count": known.count + 1}).model_dump(exclude_none=True))
        write_atomic(path.parent, path.name, b"".join([before, b"\n" if before else b"", line.encode(), b"\n"]))
        return True

    def deciding(self) -> AbstractContextManager[bool]:
        """Whether this process alone decides what is due; the lock ends with the process."""
        return self._held("tick")

    def firing(self, name: str) -> AbstractContextManager[bool]:
        """The lock of a firing of ``name``; False: another one is active."""
        return self._held(f"{name}.firing", _ENDING_S)

    def at_work(self, name: str) -> bool:
        """Whether a firing is active. This takes a shared lock, which no process counts as a firing."""
        with disk_errors("lock the schedules", self._folder):
            return OwnerLock.is_taken(self._folder / f"{name}.firing.lock")

    @contextmanager
    def _held(self, name: str, patience_s: float = 0.0) -> Iterator[bool]:
        with disk_errors("lock the schedules", self._folder):
            make_folders(self._folder)
            lock = OwnerLock.within(self._folder / f"{name}.lock", patience_s)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def log_path(self, name: str) -> Path:
        """The file of a firing's output."""
        make_folders(self._folder)
        return self._folder / f"{name}.log"

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"


def _torn(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _firing(line: bytes) -> Firing | None:
    try:
        return Firing.model_validate_json(line) if line.strip() else None
    except ValidationError:
        return None


_HINTS = {
    "cron": 'minute hour day-of-month month day-of-week: --cron "0 2 * * 1-5"',
    "timezone": "use a name of the time zone database: --timezone UTC, --timezone Europe/Berlin (default: this"
    " computer's)",
}


def checked(
    name: str, values: Mapping[str, Any], present: Collection[str], budget: Budget, target: Target, job: Job,
    searches: Mapping[str, StepSearch],
) -> Schedule:  # fmt: skip
    """Returns the schedule that ``values`` describe. Raises ConflictError if the name is ``present``, UsageError for a
    wrong cron line, zone, setting or variant, BudgetError for a cap that allows no firing."""
    if name in present:
        hint = f"fcctl schedule rm {name}, or choose another name"
        raise ConflictError(f"the schedule '{name}' already exists", hint=hint)
    new = _valid(name, values)
    check_settings(job, new.settings)
    check_variants(job, job.steps, new.settings, searches)
    _check_caps(new, budget, target)
    return new


def _valid(name: str, values: Mapping[str, Any]) -> Schedule:
    from pydantic import TypeAdapter

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise UsageError(
            f"'{name}' is not a valid schedule name",
            hint="use at most 24 characters: a-z, 0-9, and hyphens inside the name",
        ) from None
    try:
        return Schedule.model_validate(dict(values))
    except ValidationError as e:
        first = e.errors()[0]
        key = str(first["loc"][0])
        option = {"budget_usd": "--budget", "per_month_usd": "--per-month", "catch_up_minutes": "--catch-up"}
        said = f"{option.get(key, f'--{key}')}: {models.reason(first)}"
        raise UsageError(said, hint=_HINTS.get(key, "fcctl schedule add --help")) from None


def _check_caps(new: Schedule, budget: Budget, target: Target) -> None:
    rate = usd_per_hour(target, budget)
    per_run = _most_of_one(new, budget)
    minute = rate / 60
    if new.budget_usd is not None and per_run is not None and per_run < new.budget_usd:
        raise BudgetError(
            f"a firing's budget of ${new.budget_usd:g} is above the cap of a run",
            cause=f"per_run_usd of [budget] is ${per_run:g}, and the smaller one counts",
            hint=f"use --budget {per_run:g} or less, or raise per_run_usd",
        )
    if per_run is not None and per_run < minute:
        raise BudgetError(
            f"a firing's budget of ${per_run:g} is less than one minute on '{target.name}' costs",
            cause=f"a minute costs ${minute:.4f}, and the cloud bills at least one minute",
            hint=f"for ten minutes: --budget {max(0.01, minute * 10):.2f}",
        )
    if new.per_month_usd is None:
        return
    if per_run is None:
        raise BudgetError(
            "a cap for the month also needs a cap for each run",
            cause="before a firing starts, fcctl compares its cap with the rest of the month's cap",
            hint="add --budget USD, or set [budget] per_run_usd",
        )
    if per_run > new.per_month_usd:
        raise BudgetError(
            f"no firing could start: one may cost ${per_run:g}, but a whole month only ${new.per_month_usd:g}",
            hint=f"use --budget {new.per_month_usd:g} or less",
        )
