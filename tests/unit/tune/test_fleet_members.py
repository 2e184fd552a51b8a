"""The members of a search on several machines: what is ended with it, what is let go for good, what is told of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import CloudError, ConflictError, MachineStopped
from orchestrator.base.journal import JournalEntry
from orchestrator.base.observer import Observer
from orchestrator.machines.cloud import Power
from orchestrator.machines.provision.release import InUse, Released
from orchestrator.runs import reopen
from orchestrator.runs import run as running
from orchestrator.runs.machine import release as hold_release
from orchestrator.runs.machine.release import Releaser
from orchestrator.runs.reopen import with_members
from orchestrator.runs.resume_run import resume_run
from orchestrator.tune import member as fleet_member
from orchestrator.tune.member import Member, close_waiting

SEARCH, HELPER = (f"20261121t08{minute}30z-{job}-3fa9c1" for minute, job in ((10, "tune-a"), (11, "tune-member-b")))
STOPPED = MachineStopped("vm was preempted", how="preempted", status="preempted")


class Store:
    """Runs under way, and runs that are complete, of which some have a status."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plans: dict[str, dict[str, Any]] = {}
        self.complete: dict[str, str] = {}

    def has(self, run: str, plan: dict[str, Any], complete: str = "") -> None:
        plan = {"plan": {"run_id": run}, **plan}
        if complete:
            self.complete[run] = complete
            self.folder(run).mkdir()
            (self.folder(run) / "plan.json").write_text(json.dumps(plan))
        else:
            self.plans[run] = plan

    def folder(self, run_id: str) -> Path:
        return self.root / run_id

    def active(self) -> list[str]:
        return sorted(self.plans)

    def is_complete(self, run_id: str) -> bool:
        return run_id not in self.plans

    def plan_of(self, run_id: str) -> dict[str, Any] | None:
        return self.plans.get(run_id)

    def rows(self, *, job: str) -> list[Any]:
        del job
        return [SimpleNamespace(run_id=run_id, status=self.complete[run_id]) for run_id in sorted(self.complete)[::-1]]


def resuming(monkeypatch: pytest.MonkeyPatch, module: Any, driver: Any) -> None:
    @contextmanager
    def resumed(*_: object, **__: object) -> Iterator[Any]:
        yield driver

    monkeypatch.setattr(module, "resumed", resumed)


def test_a_helper_is_not_resumed_alone_since_it_would_wait_for_its_search() -> None:
    services: Any = SimpleNamespace(store=SimpleNamespace(plan_of=lambda _: {"fleet_of": SEARCH}))
    with pytest.raises(ConflictError) as refused:
        resume_run(services, HELPER, lambda _: None)
    assert f"fcctl run --resume {SEARCH}" in (refused.value.hint or "")


# ------------------------------------------------------------------------------------------------- for good
class Ends:
    """A driver whose machine is off."""

    waits = submitted = True

    def __init__(self) -> None:
        self.made: list[str] = []

    def cancel(self, *_: object) -> None:
        raise STOPPED

    def give_up(self, _reason: str, *, disk: bool) -> Any:
        self.made.append("kept" if disk else "not kept")
        return SimpleNamespace(status="cancelled")


def test_a_helper_whose_machine_is_off_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    resuming(monkeypatch, reopen, ends)
    store = SimpleNamespace(is_complete=lambda _: False)
    helped: Any = SimpleNamespace(left_on=SimpleNamespace(had_by=lambda _: None), store=store)
    for fleet_of in (SEARCH, None):
        monkeypatch.setattr(reopen, "saved_plan", lambda *_, of=fleet_of: SimpleNamespace(fleet_of=of, builds_for=None))
        if fleet_of is not None:
            assert reopen.cancel(helped, HELPER, reason="by the user")
            assert ends.made == ["not kept"]
        else:
            with pytest.raises(MachineStopped):
                reopen.cancel(helped, SEARCH, reason="by the user")


def test_with_a_run_that_waits_for_a_machine_goes_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    resuming(monkeypatch, fleet_member, ends)
    services: Any = SimpleNamespace(store=SimpleNamespace(is_complete=lambda run_id: run_id == "home"))
    for run_id in ("one", "home"):
        close_waiting(services, run_id)
    assert ends.made == ["not kept"]


def test_who_gives_up_its_disk_has_its_machine_deleted_before_it_is_complete() -> None:
    made: list[str] = []
    releaser = SimpleNamespace(delete_stopped=lambda: made.append("delete"))
    driver: Any = SimpleNamespace(
        state=SimpleNamespace(stopped="preempted"), machine=SimpleNamespace(releaser=releaser),
        log=lambda kind, **_: made.append(kind), _to_the_end=lambda: made.append("complete"),
    )  # fmt: skip
    for disk in (True, False):
        running.Driver.give_up(driver, "nobody needs it", disk=disk)
    assert made == ["lost", "collected", "complete", "lost", "collected", "delete", "complete"]


GONE = Released("deleted", "us-west1-c", started=1.0, stopped=5.0)


@pytest.mark.parametrize(
    ("policy", "neighbour", "answer", "released"),
    [
        ("delete", False, GONE, {"how": "deleted", "stopped": 5.0}),
        ("delete", False, Released("gone", "us-west1-c"), {"how": "gone", "stopped": 4.0}),
        ("delete", False, InUse("whoever"), {"how": "used", "stopped": 4.0}),
        ("delete", False, CloudError("no answer"), {"how": "stopped", "stopped": 4.0}),
        ("delete", True, GONE, None),
        ("stop", False, GONE, None),
        ("keep", False, GONE, None),
    ],
)
def test_a_machine_that_is_off_is_deleted_where_its_target_says_so(
    monkeypatch: pytest.MonkeyPatch, policy: str, neighbour: bool, answer: Any, released: dict[str, Any] | None
) -> None:
    """Not if a run has something on its disk; when it went off, which is what it costs, stays as it was."""
    logged: list[tuple[str, dict[str, Any]]] = []

    def release(how: str, is_on: Any) -> list[Any]:
        assert how == "delete"
        assert is_on(SimpleNamespace(power=Power.STOPPED)) is None
        assert is_on(SimpleNamespace(power=Power.RUNNING)) is not None, "somebody else's by now"
        if isinstance(answer, Exception):
            raise answer
        return [answer]

    other = SimpleNamespace(uses_it=False, left_behind=neighbour)
    monkeypatch.setattr(hold_release, "neighbours", lambda *_: [other])
    off = JournalEntry(seq=0, time=4.5, kind="stopped", data={"at": 4.0})
    lease: Any = SimpleNamespace(
        target=SimpleNamespace(release=policy, instance="vm"), log=lambda kind, **facts: logged.append((kind, facts)),
        entries=lambda: [off], release_requests=lambda: ["it"], release=release,
    )  # fmt: skip
    services: Any = SimpleNamespace(observer=Observer())
    saved: Any = SimpleNamespace(plan=SimpleNamespace(run_id=HELPER))
    Releaser(services, lease, saved).delete_stopped()
    if released is None:
        assert logged == []
        return
    assert [kind for kind, _ in logged] == ["release", "released"]
    assert logged[1][1].items() >= released.items()


# ------------------------------------------------------------------------------------------------- its members
def run_id(minute: int, job: str = "tune-member-b") -> str:
    return f"20261121t08{minute:02}30z-{job}-3fa9c1"


ORIGINAL, MOVED, STRANGE = run_id(10, "tune-a"), run_id(30, "tune-b"), run_id(31, "tune-x")
OLD, LOST, WAITING, NEWEST, ELSEWHERE = (run_id(minute) for minute in (9, 11, 12, 32, 33))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path)
    b, c = {"target": {"name": "b"}}, {"target": {"name": "c"}}
    made.has(OLD, {"fleet_of": ORIGINAL, **b}, complete="passed")  # before the search: its file is not even looked at
    made.has(LOST, {"fleet_of": ORIGINAL, **c}, complete="passed")
    made.has(WAITING, {"fleet_of": ORIGINAL, **c})
    made.has(MOVED, {"plan": {"run_id": MOVED, "resume_from": ORIGINAL}})
    made.has(NEWEST, {"fleet_of": MOVED, **c})
    made.has(ELSEWHERE, {"fleet_of": STRANGE, **c})
    (made.folder(OLD) / "plan.json").write_text("[")
    return made


def test_who_ends_a_search_ends_all_that_help_it(store: Store) -> None:
    asked: Any = store
    assert with_members(asked, [MOVED]) == [MOVED, WAITING, NEWEST]
    assert with_members(asked, [STRANGE]) == [STRANGE, ELSEWHERE]


@pytest.mark.parametrize(
    ("status", "steps", "over", "note"),
    [
        ("passed", ["passed"], False, ""),  # it was told, and we hear of it later
        (
            "passed",
            ["warned"],
            False,
            "lost: it stopped waiting for the search; the search continues without this host",
        ),
        ("passed", ["warned"], True, ""),
        ("lost", [], False, "lost: no sign of it; the search continues without this host"),
        ("cancelled", [], False, ""),
        ("failed", [], False, "cannot be used: no sign of it. fcctl logs"),
    ],
)
def test_the_search_goes_on_without_a_member_that_is_lost(
    monkeypatch: pytest.MonkeyPatch, status: str, steps: list[str], over: bool, note: str
) -> None:
    notes: list[str] = []
    record: Any = SimpleNamespace(
        status=status, steps=[SimpleNamespace(status=one) for one in steps], cost=SimpleNamespace(usd=0.5),
        message="no sign of it", hint="fcctl logs", run_id=HELPER,
    )  # fmt: skip
    member: Any = SimpleNamespace(
        over=Event(), left_out=Event(), run_id=HELPER, _prepared=None, _launch=lambda _: record,
        _plain=SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0)), _worker_tunnel=SimpleNamespace(),
        _events=SimpleNamespace(note=notes.append),
    )  # fmt: skip
    member._judge = lambda *words: Member._judge(member, *words)
    if over:
        member.over.set()
    Member._follow(member)
    assert (member.status, member.usd, "".join(notes)) == (status, 0.5, note)
