"""Runs that are left half way: nothing stays on for them, and who left them hears how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from orchestrator.base.errors import (
    AuthError,
    CloudError,
    ConflictError,
    FcctlError,
    HostFault,
    HostUnreachable,
    LinkLost,
    MachineStopped,
    RunNotFound,
)
from orchestrator.machines.cloud import Power
from orchestrator.machines.provision.ready import StoppedDuringStart
from orchestrator.money.caps import LEAST_S
from orchestrator.runs import actions as moves
from orchestrator.runs import resume_run as go_on
from orchestrator.runs import run as runs
from orchestrator.runs.actions import RunActions
from orchestrator.runs.cost import spending
from orchestrator.runs.lifecycle import Stage, State
from orchestrator.runs.machine import run_lease
from orchestrator.runs.machine.run_lease import NEED_MARGIN_S, RunLease
from orchestrator.runs.run import Driver

RUN = "20261121t081530z-tune-l4-3fa9c1"
UNREACHABLE = HostUnreachable("vm runs, but executed no command within 30 s", reason="timeout")


def raising(error: BaseException) -> Any:
    def act(*_: object, **__: object) -> NoReturn:
        raise error

    return act


# ------------------------------------------------------------------------------------------------- out of reach
def driven(**facts: Any) -> None:
    """Drives a run of which so much is known to its end."""
    driver: Any = SimpleNamespace(**{"run_id": RUN, "launch": lambda: None, "abandon": lambda *_: None, **facts})
    ends: Any = SimpleNamespace(release=lambda: None, close=lambda: None)
    runs.collect_and_finish(driver, ends, ends)


@pytest.mark.parametrize("error", [UNREACHABLE, LinkLost("no link")], ids=lambda e: e.code)
def test_who_loses_sight_of_a_run_hears_how_to_come_back(error: FcctlError) -> None:
    """Also of one in a cloud, whose machine answers neither where it was nor where the cloud says."""
    state = SimpleNamespace(without_outcome=None)
    with pytest.raises(LinkLost) as lost:
        driven(finish=raising(error), submitted=True, ended_here=False, state=state)
    assert f"fcctl attach {RUN}" in (lost.value.hint or "")


@pytest.mark.parametrize(("submitted", "outcome"), [(False, None), (True, "abandoned")])
def test_who_never_got_in_hears_why(submitted: bool, outcome: str | None) -> None:
    with pytest.raises(HostUnreachable) as refused:
        driven(launch=raising(UNREACHABLE), submitted=submitted, state=SimpleNamespace(without_outcome=outcome))
    assert refused.value is UNREACHABLE


@pytest.mark.parametrize("unknown", [CloudError("no answer from the cloud"), AuthError("log in", hint="gcloud auth")])
def test_a_cloud_that_does_not_answer_either_does_not_hide_that_the_link_is_lost(unknown: FcctlError) -> None:
    driver: Any = SimpleNamespace(
        state=None, mode="resume", is_on_a_machine=True, _step=raising(LinkLost("no link", hint="try")),
        link=SimpleNamespace(hurry=None), wanted_machine=lambda: SimpleNamespace(revive=raising(unknown)),
    )  # fmt: skip
    driver._revive = lambda error: Driver._revive(driver, error)
    with pytest.raises(LinkLost, match="no link") as lost:
        Driver._finish(driver, wait=True)
    assert unknown.message in (lost.value.cause or "")
    assert lost.value.hint == (unknown.hint or "try")


@pytest.mark.parametrize("is_off", [True, False])
def test_a_machine_that_goes_off_while_it_is_looked_for_was_stopped(
    monkeypatch: pytest.MonkeyPatch, is_off: bool
) -> None:
    """That is no lack of machines, which would end all for good; where it is on by then, it is tried again."""
    stopped = MachineStopped("vm was preempted", how="preempted", status="preempted")
    found = iter([None, stopped if is_off else None])
    monkeypatch.setattr(run_lease, "make_ready", raising(StoppedDuringStart("vm was stopped during its start")))
    machine = SimpleNamespace(name="vm", power=Power.RUNNING)
    cloud = SimpleNamespace(machine=lambda *_: machine)
    target = SimpleNamespace(instance="vm", model_copy=lambda **_: None)
    lease: Any = SimpleNamespace(
        why_stopped=lambda: next(found), last_known=lambda: {"zone": "z"}, host=None, log=None, target=target,
        services=SimpleNamespace(clouds=SimpleNamespace(open=lambda _: cloud)),
    )  # fmt: skip
    with pytest.raises(MachineStopped if is_off else LinkLost):
        RunLease.revive(lease)


def test_a_runs_cost_is_reserved_before_anything_of_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    active = SimpleNamespace(release=lambda: None)
    driver = SimpleNamespace(begin=lambda: happened.append("begun"))
    monkeypatch.setattr(runs, "Driver", lambda *_: driver)
    monkeypatch.setattr(runs, "collect_and_finish", lambda *_, **__: None)
    services: Any = SimpleNamespace(store=SimpleNamespace(begin=lambda *_: active))
    monkeypatch.setattr(spending, "set_aside", lambda *_: happened.append("reserved"))
    saved: Any = SimpleNamespace(plan=SimpleNamespace(run_id=RUN), to_json=dict, worst_case_usd=1.0)
    nothing: Any = None
    runs.run(services, nothing, saved, nothing)
    assert happened == ["reserved", "begun"]


@pytest.mark.parametrize(("known", "lost"), [(False, True), (True, False)])
def test_a_run_that_its_host_forgets_before_it_is_collected_is_lost(
    monkeypatch: pytest.MonkeyPatch, known: bool, lost: bool
) -> None:
    """Else every command would ask for it in vain from then on. A file that went is another matter."""
    monkeypatch.setattr(moves, "collect", raising(HostFault("not here", fault="not_found")))
    said: list[str] = []
    acts: Any = SimpleNamespace(
        state=State(stage=Stage.ENDED), run_id=RUN, link=None, services=None,
        active=SimpleNamespace(intake=lambda _: None), _affordable_bytes=lambda: None,
        saved=SimpleNamespace(target=SimpleNamespace(name="b")), stepped=list, ask=lambda: object() if known else None,
        log=lambda kind, **_: said.append(kind), _collection=None,
    )  # fmt: skip
    acts._unknown_there = lambda: RunActions._unknown_there(acts)
    if lost:
        RunActions._collect(acts)
        assert said == ["lost", "collected"]
    else:
        with pytest.raises(HostFault):
            RunActions._collect(acts)
        assert said == []


# ------------------------------------------------------------------------------------------------- going on
class Earlier:
    """A run whose machine was woken for what is left of it."""

    saved = SimpleNamespace(session=None, fence_s=60, model_copy=lambda **_: SimpleNamespace(worst_case_usd=1.0))
    waits = True
    active = SimpleNamespace(intake=lambda: SimpleNamespace(read_json=None))

    def __init__(self) -> None:
        self.made: list[str] = []
        self.collects: BaseException | None = None

    def collect_only(self) -> None:
        self.made.append("collect")
        if self.collects is not None:
            raise self.collects

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.made.append(name)


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Earlier:
    made = Earlier()

    @contextmanager
    def resumed(*_: object, **__: object) -> Iterator[Earlier]:
        yield made

    monkeypatch.setattr(go_on, "resumed", resumed)
    monkeypatch.setattr(go_on._Resume, "_rest", lambda *_: SimpleNamespace())
    monkeypatch.setattr(go_on, "set_aside_wake", lambda *_: made.made.append("reserve"))
    return made


def go(error: type[BaseException], timeout_s: float | None = None) -> None:
    plan = {"plan": {"run_id": RUN}}
    store = SimpleNamespace(is_complete=lambda _: False, plan_of=lambda _: plan, active=list, rows=lambda **_: [])
    services: Any = SimpleNamespace(store=store, secrets=dict)
    with pytest.raises(error):
        go_on.resume_run(services, RUN, lambda _: None, timeout_s=timeout_s)


@pytest.mark.parametrize("error", [LinkLost("cut"), KeyboardInterrupt()], ids=["cut", "Ctrl-C"])
def test_a_machine_is_off_again_if_what_is_on_its_disk_does_not_come_home(
    earlier: Earlier, error: BaseException
) -> None:
    earlier.collects = error
    go(type(error))
    assert earlier.made == ["reserve", "wake", "collect", "off_again"], "and the run waits for it as before"


@pytest.mark.parametrize("error", [CloudError("refused"), KeyboardInterrupt()], ids=["refused", "Ctrl-C"])
def test_a_machine_is_let_go_if_the_rest_cannot_be_done_there(
    earlier: Earlier, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(go_on._Resume, "_begin", raising(error))
    go(type(error))
    assert earlier.made[-1] == "finish", "which completes the run and stops its machine"


def test_more_time_is_agreed_to_when_it_is_known_for_which_step(earlier: Earlier) -> None:
    """And that is on the disk of a machine for whose start one would have to agree."""
    go(ConflictError, timeout_s=600)
    assert earlier.made == []


@pytest.mark.parametrize("is_collected", [True, False])
def test_one_that_another_fcctl_collects_meanwhile_goes_on_from_here(
    monkeypatch: pytest.MonkeyPatch, is_collected: bool
) -> None:
    complete: list[bool] = []

    def resumed(*_: object, **__: object) -> None:
        complete.append(is_collected)
        raise RunNotFound(f"run {RUN} is not active")

    monkeypatch.setattr(go_on, "resumed", resumed)
    monkeypatch.setattr(go_on._Resume, "from_home", raising(CloudError("what is collected is read")))
    store = SimpleNamespace(
        is_complete=lambda _: any(complete), plan_of=lambda _: {"plan": {}}, active=list, rows=lambda **_: []
    )
    with pytest.raises(CloudError if is_collected else RunNotFound):
        go_on.resume_run(SimpleNamespace(store=store), RUN, lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "goes_on", "needs_s"),
    [(None, None, 600 + NEED_MARGIN_S), (None, RUN, 600 + NEED_MARGIN_S), (1.0, None, 660.0), (1.0, RUN, LEAST_S)],
)
def test_what_goes_on_within_a_budget_takes_the_machine_that_was_just_woken_for_it(
    budget: float | None, goes_on: str | None, needs_s: float
) -> None:
    """Its limit is what the budget buys, and some of that is used up by then."""
    wishes: list[Any] = []
    saved = SimpleNamespace(
        worst_case_minutes=10, stop_at_usd=budget, fence_s=660, session=None, session_abroad=False,
        plan=SimpleNamespace(resume_from=goes_on), target=SimpleNamespace(kind="sandbox"),
    )  # fmt: skip
    lease: Any = SimpleNamespace(
        saved=saved, reserve_s=lambda: 60.0, target=SimpleNamespace(max_run_minutes=240), acquire=wishes.append
    )
    RunLease.acquire_for_steps(lease)
    assert [wish.need_s for wish in wishes] == [needs_s]


@pytest.mark.parametrize(
    ("found", "forget", "told"),
    [
        ([], lambda _: None, "abandoned"),
        (["a run"], raising(AssertionError()), "submitted"),
        ([], raising(HostFault("a broken disk", fault="denied")), "abandoned"),
        ([], raising(HostFault("run x has not ended", fault="conflict")), None),
    ],
)
def test_a_submission_that_arrives_after_its_run_was_closed_starts_nothing(
    found: list[str], forget: Any, told: str | None
) -> None:
    """Without its snapshot the host refuses it. The killed controller's last bytes may be on their way yet."""
    lines: list[str] = []
    asked: list[str] = []
    session = SimpleNamespace(status=lambda _: found, forget=lambda run_id: asked.append(run_id) or forget(run_id))
    act: Any = SimpleNamespace(
        run_id=RUN, link=SimpleNamespace(ask=lambda ask: ask(session)), log=lambda kind, **_: lines.append(kind),
        services=SimpleNamespace(observer=SimpleNamespace(phase=lambda *_: None)),
        saved=SimpleNamespace(target=SimpleNamespace(name="l4")),
    )  # fmt: skip
    act.ask = lambda: RunActions.ask(act)
    with nullcontext() if told else pytest.raises(HostFault):
        RunActions._ask(act)
    assert lines == ([told] if told else [])
    assert asked == ([] if found else [RUN])
