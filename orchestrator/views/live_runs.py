"""Polls every run that is not complete, for ``fcctl top`` and the dashboard.

A running run is never claimed, so that another fcctl can follow it. The results of a run that has ended are collected
(:func:`~orchestrator.hosts.recover.recover`), unless another fcctl does that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError, HostFault
from orchestrator.hosts.recover import recover
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.targets import Target
from orchestrator.results import documents
from orchestrator.runs.cost.machine_cost import CostSoFar, cost_so_far
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import UNREADABLE, broken, new_link, saved_plan
from orchestrator.runs.services import Services

#: Machines asked at once, and how long one poll waits for the slowest before it shows what it knows.
MACHINES = 8
PATIENCE_S = 2.0
HISTORY = 120

State = Literal["asking", "starting", "queued", "running", "ended", "unreachable", "broken"]


@dataclass(frozen=True)
class LiveRun:
    """A run as it stood when its machine last answered."""

    run_id: str
    job: str
    target: str
    state: State = "asking"
    detail: str = ""
    summary: wire.RunSummary | None = None
    sample: dict[str, Any] | None = None  # the latest telemetry
    #: What the GPU (or the CPU) did lately, percent, oldest first.
    load: tuple[float, ...] = ()
    steps: tuple[str, ...] = ()
    #: How each step ended that has: passed, warned, failed, unavailable, ...
    ended: Mapping[str, str] = field(default_factory=dict)
    usd_per_hour: float = 0.0
    worst_case_usd: float = 0.0
    worst_case_s: float = 0.0
    created: float = 0.0
    #: Whether its machine is a cloud's, which is listed with what it costs.
    in_cloud: bool = False
    #: What it has cost by its journal, and when that was read, epoch seconds.
    cost: CostSoFar | None = field(default=None, compare=False)
    costed: float = field(default=0.0, compare=False)

    def elapsed_s(self, now: float) -> float:
        return max(0.0, now - self.created)

    def spent_usd(self, now: float) -> float:
        """An estimate; what the bill says is in run.json at the end."""
        if self.cost is None:
            return self.usd_per_hour * self.elapsed_s(now) / 3600
        since = max(0.0, now - self.costed)
        return 0.0 if self.cost.emulated else self.cost.usd + self.cost.usd_per_hour * since / 3600

    def seconds_to_cap(self, now: float, cap_usd: float | None) -> float | None:
        """Until the run has cost ``cap_usd`` (or its own worst case, if that is less); None without a price."""
        if self.usd_per_hour <= 0:
            return None
        cap = min(self.worst_case_usd, cap_usd) if cap_usd is not None else self.worst_case_usd
        return max(0.0, (cap - self.spent_usd(now)) / self.usd_per_hour * 3600)


@dataclass
class _Known:
    saved: SavedPlan
    shown: LiveRun
    load: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    ended: dict[str, str] = field(default_factory=dict)
    events_offset: int = 0


class Overview:
    """Call :meth:`poll` now and then, and :meth:`close` at the end. Not for several threads at once."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs: dict[str, _Known] = {}
        self._broken: dict[str, LiveRun] = {}
        self._links: dict[str, ReconnectingHost] = {}
        self._asking: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(MACHINES, thread_name_prefix="fcctl-overview")

    def poll(self, patience_s: float = PATIENCE_S) -> list[LiveRun]:
        """The active runs, oldest first. A machine that does not answer in time keeps what it said last."""
        active = self._services.store.active()
        for run_id in [r for r in self._runs if r not in active]:
            del self._runs[run_id]
        self._broken = {}
        for run_id in active:
            if run_id not in self._runs:
                self._meet(run_id)
        now = self._services.clock.now()
        for run_id, known in self._runs.items():
            _show(known, cost=cost_so_far(self._services.store, run_id, now), costed=now)
        self._ask_all()
        wait(list(self._asking.values()), timeout=patience_s)
        shown = {**{r: known.shown for r, known in list(self._runs.items())}, **self._broken}
        return [shown[run_id] for run_id in active if run_id in shown]

    def close(self) -> None:
        """End the links; one that hangs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for link in self._links.values():
            link.close()

    def _meet(self, run_id: str) -> None:
        try:
            saved = saved_plan(self._services, run_id)
        except (FcctlError, *UNREADABLE) as error:
            self._broken[run_id] = LiveRun(run_id, "-", "-", "broken", broken(run_id, error).detail or "")
            return
        if saved is not None:
            self._runs[run_id] = _Known(saved, _first(saved))

    def _ask_all(self) -> None:
        """One question at a time to each machine, all machines at once."""
        machines: dict[str, list[_Known]] = {}
        for known in self._runs.values():
            machines.setdefault(known.saved.target.name, []).append(known)
        self._asking = {name: future for name, future in self._asking.items() if not future.done()}
        for name, runs in machines.items():
            if name not in self._asking:
                self._asking[name] = self._pool.submit(self._ask, runs[0].saved.target, runs)
        for name in [n for n in self._links if n not in machines and n not in self._asking]:
            self._links.pop(name).close()

    def _ask(self, target: Target, runs: Sequence[_Known]) -> None:
        link = self._links.get(target.name)
        if link is None:
            link = self._links[target.name] = new_link(self._services, target, patience_s=0.0)
        for known in runs:
            try:
                self._watch(link, known)
            except FcctlError as error:
                link.close()
                _show(known, state="unreachable", detail=error.cause or error.message)
            except UNREADABLE as error:  # one run must not hide the others
                _show(known, state="broken", detail=broken(known.saved.plan.run_id, error).detail)

    def _watch(self, link: ReconnectingHost, known: _Known) -> None:
        run_id = known.saved.plan.run_id
        request = wire.WatchRequest(run_id=run_id, events_offset=known.events_offset, wait_s=0.0)
        try:
            reply, _ = link.call(lambda s: s.watch(request))
        except HostFault as fault:
            if fault.fault != "not_found":
                raise
            _show(known, state="starting", detail="not on its machine yet")
            return
        known.events_offset = reply.events_offset
        for event in reply.events:
            if event.type == "step_finished":
                known.ended[str(event.data.get("step"))] = str(event.data.get("status"))
        if reply.telemetry is not None:
            known.load.append(_load(reply.telemetry))
        ended = reply.summary.status in wire.RUN_ENDINGS
        state, detail = _standing(reply.summary)
        _show(
            known,
            state=state,
            detail=detail,
            summary=reply.summary,
            sample=reply.telemetry or known.shown.sample,
            load=tuple(known.load),
            ended=dict(known.ended),
        )
        if ended:
            recover(self._services, [run_id])


def _first(saved: SavedPlan) -> LiveRun:
    plan, emulated = saved.plan, saved.target.kind == "sandbox"
    return LiveRun(
        plan.run_id,
        plan.job,
        saved.target.name,
        steps=tuple(step.id for step in plan.steps),
        # What an emulated machine would cost is nobody's bill, and burns nothing.
        usd_per_hour=0.0 if emulated else saved.usd_per_hour,
        worst_case_usd=0.0 if emulated else saved.worst_case_usd,
        worst_case_s=saved.worst_case_minutes * 60,
        created=plan.created,
        in_cloud=saved.target.cloud is not None,
    )


def _standing(summary: wire.RunSummary) -> tuple[State, str]:
    """How a run that is on its machine stands there."""
    if summary.status in wire.RUN_ENDINGS:
        return "ended", ""
    if summary.status != "queued":
        return "running", ""
    return ("queued", f"behind {summary.behind}") if summary.behind else ("starting", "starting")


def _show(known: _Known, **changes: Any) -> None:
    known.shown = replace(known.shown, **changes)


def _load(sample: dict[str, Any]) -> float:
    """Percent: of the GPU that works most, else of the CPU."""
    series = documents.of([{**sample, "time": 0.0}])
    values = series.samples[0].values if series.samples else {}
    return values.get("util_pct", values.get("cpu_pct", 0.0))
