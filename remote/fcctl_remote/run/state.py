"""The state of a run as its folder tells it, for any process: whether it has begun, is live, or has ended; and
``events.jsonl``, its append-only log."""

from __future__ import annotations

import contextlib
import os
import time

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import STEP_ID, RunLayout
from fcctl_remote.base.processes import ends_with
from fcctl_remote.base.strict_json import parse_json, to_strict_json
from fcctl_remote.base.text import new_lines, tail
from fcctl_remote.record import Any, Record, field

HEARTBEAT_S = 2.0
#: No event is as long, bytes.
MAX_LINE_BYTES = 512 * 1024

#: Exit code of a run for each ending; the controller's table is the same.
EXIT_CODES = {
    "passed": 0, "failed": 100, "incomplete": 104, "cancelled": 103, "lost": 100, "over_budget": 5, "idle": 5,
    "preempted": 100, "error": 100,
}  # fmt: skip


class State(Record):
    """``heartbeat.json``: the state of a live run, from which another process writes the outcome if we die."""

    summary: wire.RunSummary
    boot_id: str
    pid: int
    started: float = 0.0
    session: int | None = None  # the running step's process group and session
    leader_started: str | None = None  # when its first process was: a number alone may be another's by now
    attempts: int = 0
    steps: list[wire.StepResult] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)


class Progress:
    """Keeps that file current. Its modification time is the heartbeat, which needs no room on a full disk."""

    def __init__(self, run: RunLayout, state: State, reserve: files.DiskReserve) -> None:
        self.run = run
        self.state = state
        self._reserve = reserve
        self._beaten = 0.0

    def save(self) -> None:
        """Raises: DiskFull, when not even the reserve makes room."""
        data = to_strict_json(wire.encode(self.state))
        # A step that still runs would eat the reserve.
        spare = self.state.session is not None
        self._reserve.write(lambda: files.write_atomic(self.run.heartbeat, data, durable=False), spare)
        self._beaten = time.monotonic()

    def beat(self) -> None:
        """Renew the heartbeat, at most every HEARTBEAT_S seconds."""
        now = time.monotonic()
        if now - self._beaten >= HEARTBEAT_S:
            self._beaten = now
            with contextlib.suppress(OSError):
                os.utime(self.run.heartbeat, follow_symlinks=False)


def load_state(run: RunLayout) -> State | None:
    """The run's last known state; None if it has not begun."""
    stored = files.read_object(run.heartbeat)
    if stored is None:
        return None
    try:
        state = wire.decode(State, stored)
        state.summary.heartbeat = os.lstat(run.heartbeat).st_mtime
    except (wire.WireError, OSError):
        return None
    return state


def load_plan(run: RunLayout) -> wire.RunPlan | None:
    """The run's plan; None if none was submitted, or a step has put something else in its place."""
    with contextlib.suppress(wire.WireError):
        stored = files.read_object(run.plan)
        return None if stored is None else wire.decode(wire.RunPlan, stored)
    return None


def is_known(run: RunLayout) -> bool:
    """Whether the run was submitted; a step can delete its plan."""
    return any(map(os.path.lexists, (run.plan, run.events, run.heartbeat, run.outcome)))


def has_begun(run: RunLayout) -> bool:
    """Whether a supervisor ever took the run up. From then on no other may."""
    return files.size_of(run.events) > 0 or files.is_replaced(run.events)


def last_sample(run: RunLayout) -> dict[str, Any] | None:
    """The last whole line of the run's telemetry; None if there is none."""
    for line in reversed(tail(run.telemetry, 16384).split(b"\n")):
        with contextlib.suppress(ValueError):
            sample = parse_json(line)
            if isinstance(sample, dict):
                return sample
    return None


def is_finished(run: RunLayout) -> bool:
    return files.is_plain(run.outcome)


def supervisor_pid(run: RunLayout) -> int | None:
    """The supervisor's process id, as its lock's file has it; 0 if it lives but has not said; None if there is none.

    The lock may also be held by who settles the run of a dead one: see :func:`is_supervisor`.
    """
    try:
        if not files.is_locked(run.supervisor_lock):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    with contextlib.suppress(OSError, ValueError):
        return int(files.read_plain(run.supervisor_lock, 32) or 0)
    return 0


def is_supervisor(run: RunLayout, pid: int) -> bool:
    """Whether the process of this number supervises the run, and is not another one that has the number by now."""
    return ends_with(pid, ("supervise", run.run_id))


def _is_step(name: str | None) -> bool:
    """Whether a run can be at this step; a step can write anything there."""
    return name is None or STEP_ID.fullmatch(name) is not None


def summary(run: RunLayout) -> wire.RunSummary | None:
    """The run in one line; None if it was never submitted.

    What cannot be read of a run that is here makes it one that has ended as ``error``.
    """
    if is_finished(run):
        return _of_outcome(run.run_id, files.read_object(run.outcome)) or _unreadable(run, run.outcome)
    with contextlib.suppress(wire.WireError, OSError):
        known = wire.decode(wire.RunSummary, (files.read_object(run.heartbeat) or {}).get("summary"))
        known.heartbeat = os.lstat(run.heartbeat).st_mtime
        if known.run_id == run.run_id and known.status in ("queued", "running") and _is_step(known.step):
            return known
    plan = load_plan(run)
    status = "running" if has_begun(run) else "queued"
    if plan is not None:
        return wire.RunSummary(plan.run_id, plan.job, status, plan.created, step_count=len(plan.steps))
    if not is_known(run):
        return None
    is_live = supervisor_pid(run) is not None
    return wire.RunSummary(run.run_id, "-", status, 0.0) if is_live else _unreadable(run, run.plan)


class _Ended(Record):
    """What of an outcome is looked at here. The rest may be much, and bad."""

    run_id: str
    job: str
    status: str
    exit_code: int
    started: float
    finished: float
    steps: list[dict[str, Any]]
    message: str | None = None


def _of_outcome(run_id: str, stored: Any) -> wire.RunSummary | None:
    try:
        outcome = wire.decode(_Ended, stored)
    except wire.WireError:
        return None
    if outcome.run_id != run_id or outcome.status not in wire.RUN_ENDINGS:
        return None
    done = [str(step.get("id")) for step in outcome.steps if step.get("status") != "skipped"]
    return wire.RunSummary(
        run_id=outcome.run_id,
        job=outcome.job,
        status=outcome.status,
        created=outcome.started,
        step=done[-1] if done else None,
        step_index=max(0, len(done) - 1),
        step_count=len(outcome.steps),
        finished=outcome.finished,
        exit_code=outcome.exit_code,
        message=outcome.message,
    )


def _unreadable(run: RunLayout, path: str) -> wire.RunSummary:
    message = "%s cannot be read: a step replaced or damaged this file" % os.path.basename(path)
    return wire.RunSummary(run.run_id, "-", "error", 0.0, exit_code=EXIT_CODES["error"], message=message)


def write_outcome(run: RunLayout, outcome: wire.Outcome, reserve: files.DiskReserve) -> None:
    """Write how the run ended. What its steps left is on disk before it; a run whose disk did not take it has not
    passed. Raises DiskFull: not even the reserve made room."""
    try:
        for folder in (run.steps, run.artifacts):
            files.sync_tree(folder)
    except OSError as error:
        if outcome.status in ("passed", "incomplete"):
            outcome.status, outcome.exit_code = "error", EXIT_CODES["error"]
            outcome.message = "the host's disk did not store the results: %s" % error.strerror
    data = to_strict_json(wire.encode(outcome)) + b"\n"
    reserve.write(lambda: files.write_atomic(run.outcome, data))


def outcome(plan: wire.RunPlan, status: str, message: str | None, state: State | None = None) -> wire.Outcome:
    """The ending of a run; without ``state`` of one that never began. Steps that it does not have are skipped."""
    now = time.time()
    steps = state.steps if state is not None else []
    rest = [wire.StepResult(step.id, "skipped", activity=step.activity) for step in plan.steps[len(steps) :]]
    return wire.Outcome(
        run_id=plan.run_id,
        job=plan.job,
        status=status,
        exit_code=EXIT_CODES[status],
        started=(state.started if state is not None else 0.0) or now,
        finished=now,
        steps=steps + rest,
        host=state.host if state is not None else {},
        message=message,
        tree_sha256=plan.tree_sha256,
    )


class EventLog:
    """Appends events; one process at a time writes, the one that holds the supervisor's lock."""

    def __init__(self, path: str, reserve: files.DiskReserve) -> None:
        self.path = path
        self.reserve = reserve
        self.seq = self._mend()

    def _mend(self) -> int:
        """The number of the next event. A half line of a killed writer is ended, and counts."""
        data = tail(self.path, MAX_LINE_BYTES)
        if data and not data.endswith(b"\n"):
            files.append_line(self.path, b"")
        lines = data.split(b"\n")
        bad = 0
        for line in reversed(lines if lines[-1] else lines[:-1]):
            event = _event(line)
            if event is not None:
                return event.seq + 1 + bad
            bad += 1
        return bad

    def append(self, kind: str, data: dict[str, Any], durable: bool = False, spare_reserve: bool = False) -> wire.Event:
        """Write one event. A full disk costs the run's reserve, unless ``spare_reserve``. Raises DiskFull: not even the
        reserve made room."""
        event = wire.Event(self.seq, time.time(), kind, data)
        line = to_strict_json(wire.encode(event))
        self.reserve.write(lambda: files.append_line(self.path, line), spare=spare_reserve)
        self.seq += 1
        if durable:
            self._sync()
        return event

    def _sync(self) -> None:
        with files.closing(files.open_plain(self.path)) as fd:
            files.flush(fd)
        files.sync_folder(os.path.dirname(self.path))


def read_events(path: str, offset: int, most_bytes: int) -> tuple[list[wire.Event], int]:
    """The whole events after byte ``offset``, and the offset that follows them."""
    lines, offset = new_lines(path, offset, most_bytes)
    return [event for event in map(_event, lines) if event is not None], offset


def _event(line: bytes) -> wire.Event | None:
    if not line:
        return None
    try:
        return wire.decode(wire.Event, parse_json(line))
    except ValueError:
        return None  # the half line of a killed writer
