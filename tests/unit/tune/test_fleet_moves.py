"""A search whose machine is lost: where it goes on, with what, and what becomes of what is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import (
    CapacityError,
    ConflictError,
    FcctlError,
    HostUnreachable,
    LinkLost,
    MachineStopped,
    UsageError,
)
from orchestrator.machines.targets import SshTarget
from orchestrator.runs.job.prepare import Prepared
from orchestrator.runs.services import Services
from orchestrator.tune.fleet import fleet
from orchestrator.tune.fleet import previous_leader as fleet_former
from orchestrator.tune.fleet import resume as fleet_resume
from orchestrator.tune.fleet.fleet import FleetCoordinator
from orchestrator.tune.fleet.previous_leader import PreviousLeader
from orchestrator.views.live.run import SilentObserver
from tests.support.waiting import wait_for

FIRST, MOVED, AGAIN = (
    f"20261121t08{minute}30z-tune-{name}-3fa9c1" for minute, name in ((10, "a"), (30, "b"), (40, "c"))
)
A, B, C = (SshTarget(name=name, host=name) for name in "abc")
FOUND = b"one\ntwo\n"


class Clock:
    at = 0.0

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Store:
    """Runs under way with what is here of their files, and folders of those that are home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plans: dict[str, dict[str, Any]] = {}
        self.kept: dict[str, bytes] = {}
        self.submitted: set[str] = set()
        self.ended: dict[str, str] = {}

    def folder(self, run_id: str) -> Path:
        return self.root / run_id

    def active(self) -> list[str]:
        return sorted(self.plans)

    def is_complete(self, run_id: str) -> bool:
        return run_id not in self.plans

    def plan_of(self, run_id: str) -> dict[str, Any] | None:
        return self.plans.get(run_id)

    def journal_of(self, run_id: str) -> list[Any]:
        return [SimpleNamespace(kind="submitted", data={})] if run_id in self.submitted else []

    def rows(self, *, job: str) -> list[Any]:
        del job
        return [SimpleNamespace(run_id=run_id, status=status) for run_id, status in self.ended.items()]

    def claim(self, run_id: str) -> Any:
        intake = SimpleNamespace(read=lambda _path, _limit: self.kept.get(run_id))
        return SimpleNamespace(intake=lambda: intake, release=lambda: None)

    def comes_home(self, run_id: str, journal: bytes) -> None:
        place = self.folder(run_id) / "artifacts/tune/journal.log"
        place.parent.mkdir(parents=True)
        place.write_bytes(journal)


class Heard(SilentObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


class Helper:
    """A member that works on its machine and can be reached, until it makes way."""

    def __init__(self, name: str) -> None:
        self.name, self.works, self.runs = name, True, [f"20261121t081130z-tune-member-{name}-3fa9c1"]
        self.over, self.is_up = threading.Event(), True

    def start(self) -> None: ...

    def close(self) -> None: ...

    def join(self, _seconds: float | None = None) -> bool:
        return not self.works

    def stop(self, _reason: str) -> None:
        self.works = False

    def hand_over(self) -> None:
        self.works = False


def services_of(**given: Any) -> Services:
    """Services of which only what is given is there."""
    return Services(**({field.name: None for field in fields(Services)} | given))


class World:
    """A search on a, helped by b and c; what is to be run next is written down."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.said, self.clock = Store(root), Heard(), Clock()
        self.planned: list[tuple[str, bool]] = []
        self.ran: list[tuple[str, dict[str, bytes]]] = []
        self.runs: list[Callable[[], Any]] = []
        self.ended: list[str] = []
        monkeypatch.setattr(fleet, "plan_again", self._plan_again)
        monkeypatch.setattr(fleet, "run", self._run)
        monkeypatch.setattr(
            PreviousLeader, "_is_ended", lambda previous_leader: bool(self.ended.append(previous_leader.run_id)) or True
        )

    def coordinator(
        self, run_id: str = FIRST, *before: str, resumed: bool = False, left: dict[str, list[str]] | None = None
    ) -> FleetCoordinator:
        nothing: Any = None
        plans: Any = SimpleNamespace(
            search=SimpleNamespace(saved=self._saved(run_id, A, before), source=None), members=[]
        )
        services = services_of(clock=self.clock, store=self.store, observer=self.said)
        made = FleetCoordinator(
            lambda _: services, nothing, nothing, plans, nothing, self.said, left or {} if resumed else None
        )
        made._leader_tunnel.start = lambda: None  # type: ignore[method-assign]
        for name in "bc":
            helper: Any = Helper(name)
            made.members[name], made._worker_tunnels[name] = helper, helper
        return made

    def _saved(self, run_id: str, target: SshTarget, before: tuple[str, ...]) -> Any:
        self.store.plans[run_id] = {"plan": {"run_id": run_id}, "target": {"name": target.name}}
        there = SimpleNamespace(members=[B, C], before=list(before))
        return SimpleNamespace(target=target, plan=SimpleNamespace(run_id=run_id), fleet=there)

    def _plan_again(
        self, _s: Any, _p: Any, search: Any, _source: Any, host: SshTarget, _usd: Any, *, seeded: bool
    ) -> Any:
        self.planned.append((host.name, seeded))
        run_id = {"b": MOVED, "c": AGAIN}[host.name]
        return Prepared(self._saved(run_id, host, (*search.fleet.before, search.plan.run_id)), None)  # type: ignore[arg-type]

    def _run(
        self, _services: Any, _link: Any, saved: Any, _source: Any, *, waking: Any, beside: dict[str, bytes]
    ) -> Any:
        del waking
        self.ran.append((saved.plan.run_id, beside))
        return self.runs.pop(0)()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(fleet.LeaderTunnel, "start", lambda _: None)
    return World(tmp_path, monkeypatch)


def is_lost(error: FcctlError) -> Callable[[], Any]:
    def search(**_: object) -> Any:
        raise error

    return search


def finished(status: str, run_id: str) -> Any:
    return SimpleNamespace(record=SimpleNamespace(status=status, run_id=run_id))


def leaving(error: BaseException) -> Any:
    raise error


UNREACHABLE = HostUnreachable("vm runs, and no command ran on it within 30 s", reason="timeout")
STOPPED = MachineStopped("vm was preempted", how="preempted", status="preempted")


@pytest.mark.parametrize("error", [LinkLost("no link"), UNREACHABLE, STOPPED], ids=lambda e: e.code)
def test_a_search_moves_however_its_machine_is_lost(world: World, error: FcctlError) -> None:
    """One in a cloud that does not come back within reach is unreachable, and not a lost link."""
    made = world.coordinator()
    made._leader_tunnel.journal = FOUND

    def runs() -> Any:
        made._at_work()
        return finished("passed", MOVED)

    world.runs = [runs]
    done = made.coordinate(is_lost(error))
    assert done is not None
    assert done.record.run_id == MOVED
    assert world.planned == [("b", True)]
    assert world.ran == [(MOVED, {"artifacts/tune/journal.log": FOUND})], "what was found is on this disk, too"
    assert world.ended == [FIRST], "nobody else leads it then"


def test_what_it_was_is_left_alone_until_another_machine_has_it(world: World) -> None:
    made = world.coordinator()
    made._leader_tunnel.journal = FOUND

    def interrupted() -> Any:
        raise KeyboardInterrupt

    world.runs = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        made.coordinate(is_lost(STOPPED))
    assert world.ended == []
    assert world.said.notes[-1] == f"the search did not move; go on with it: fcctl tune --resume {FIRST}"


def test_a_machine_that_cannot_be_had_for_it_is_not_the_last_one(world: World) -> None:
    made = world.coordinator()
    made._leader_tunnel.journal = FOUND

    def runs() -> Any:
        made._at_work()
        return finished("passed", AGAIN)

    world.runs = [is_lost(CapacityError("no stock")), runs]
    done = made.coordinate(is_lost(STOPPED))
    assert done is not None
    assert done.record.run_id == AGAIN
    assert [host for host, _ in world.planned] == ["b", "c"]
    assert world.ran[1] == (AGAIN, {"artifacts/tune/journal.log": FOUND})
    assert "host b: no stock; the search moves to c, with what was found" in world.said.notes
    assert sorted(world.ended) == [FIRST, MOVED]


def test_the_search_goes_on_from_all_that_is_known_of_it(world: World) -> None:
    """What came home may be what an earlier machine had; and one that is reached again is heard until the end."""
    made = world.coordinator()
    world.store.comes_home(FIRST, b"one\n")
    made._leader_tunnel.journal = FOUND
    successor: Any = made.members["b"]
    gives_way = successor.hand_over

    def later() -> None:
        gives_way()
        made._leader_tunnel.journal = FOUND + b"three\n"

    successor.hand_over = later
    world.runs = [lambda: finished("passed", MOVED)]
    made.coordinate(lambda: finished("lost", FIRST))
    assert world.ran == [(MOVED, {"artifacts/tune/journal.log": FOUND + b"three\n"})]


@pytest.mark.parametrize(("at_home", "kept", "brought"), [(b"one\n", None, b"one\n"), (None, FOUND, FOUND),
                                                          (b"one\n", FOUND, FOUND), (None, None, None)])  # fmt: skip
def test_who_comes_back_while_a_search_moves_brings_what_was_found(
    world: World, at_home: bytes | None, kept: bytes | None, brought: bytes | None
) -> None:
    """The fcctl that moved it was killed before it had, and had written down what it was to bring."""
    if at_home is not None:
        world.store.comes_home(FIRST, at_home)
    world.store.plans[FIRST] = {"target": {"name": "a"}}
    world.store.kept |= {MOVED: kept} if kept is not None else {}
    assert world.coordinator(MOVED, FIRST)._leader_tunnel.seed is None, "that is another search, which begins"
    made = world.coordinator(MOVED, FIRST, resumed=True)
    assert made._leader_tunnel.seed == brought
    made._at_work()
    made._previous_leaders[0].end()
    assert world.ended == [FIRST], "which that fcctl had not got to"


# ------------------------------------------------------------------------------------------------- what it was
class Driver:
    """A run there: within reach once ``away`` attempts were made."""

    def __init__(self, away: int, *, stopped: bool = False) -> None:
        self.away, self.stopped, self.made = away, stopped, list[str]()

    def finish(self, *, wait: bool = True) -> Any:
        self.away -= 1
        if self.away >= 0:
            raise LinkLost("nobody answers")
        if self.stopped:
            raise STOPPED
        self.made.append("finish")
        return object() if wait else None

    def cancel(self, reason: str, _grace_s: float) -> None:
        self.made.append(f"cancel: {reason}")

    def give_up(self, reason: str, *, disk: bool) -> None:
        self.made.append(f"give up: {reason}{', but not its disk' if disk else ''}")


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Driver], tuple[PreviousLeader, Heard]]:
    monkeypatch.setattr(fleet_former, "REACH_AGAIN_S", 0.01)

    def made(driver: Driver) -> tuple[PreviousLeader, Heard]:
        @contextmanager
        def resumed(_services: object, run_id: str, *, patience_s: float) -> Iterator[Driver]:
            assert (run_id, patience_s) == (FIRST, 0.0)
            yield driver

        monkeypatch.setattr(fleet_former, "resumed", resumed)
        said = Heard()
        return PreviousLeader(lambda _: services_of(), said, FIRST, "a", "the search moved"), said

    return made


def test_a_former_machine_is_told_as_soon_as_it_answers_again(
    follow: Callable[[Driver], tuple[PreviousLeader, Heard]],
) -> None:
    driver = Driver(away=5)
    previous_leader, said = follow(driver)
    previous_leader.start()
    wait_for(lambda: len(driver.made) == 3)
    previous_leader.end()
    assert driver.made == ["finish", "cancel: the search moved", "finish"]
    assert said.notes == []


def test_a_former_machine_that_stays_away_is_named_in_the_end(
    follow: Callable[[Driver], tuple[PreviousLeader, Heard]],
) -> None:
    driver = Driver(away=10**9)
    previous_leader, said = follow(driver)
    previous_leader.start()
    previous_leader.end()
    assert driver.made == []
    (note,) = said.notes
    assert note.startswith("host a: out of reach")
    assert note.endswith(f"fcctl cancel {FIRST}")


# ------------------------------------------------------------------------------------------------- coming back
@pytest.mark.parametrize(
    ("status", "moved"), [(None, "it is run"), ("passed", "had ended: passed"), ("cancelled", None)]
)
def test_what_moved_is_not_gone_on_with_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str | None, moved: str | None
) -> None:
    """Nor once it has ended; but if it never got to the other machine."""
    store, later = Store(tmp_path), {"fleet": {"before": [FIRST]}}
    store.plans[FIRST] = {"fleet": {"before": []}}
    if status is None:
        store.plans[MOVED] = later
    else:
        store.ended[MOVED] = status
        store.folder(MOVED).mkdir()
        (store.folder(MOVED) / "plan.json").write_text(json.dumps(later))
    monkeypatch.setattr(fleet_resume, "saved_plan", lambda *_: None)
    services: Any = SimpleNamespace(store=store)
    place: Any = None
    with pytest.raises(ConflictError if moved else UsageError, match=moved or "no search over several") as refused:
        fleet_resume.plans_of(services, place, FIRST)
    assert (MOVED in (refused.value.hint or "")) == (moved is not None)


@pytest.mark.parametrize(
    ("cure", "says"), [(None, "goes on without the link"), ("ssh-keygen -R a", "ssh-keygen -R a; then")]
)
def test_who_comes_back_and_does_not_reach_it_is_told_how_to_try_again(
    monkeypatch: pytest.MonkeyPatch, cure: str | None, says: str
) -> None:
    @contextmanager
    def resumed(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(finish=is_lost(HostUnreachable("no way in", reason="key", hint=cure)))

    monkeypatch.setattr(fleet_resume, "resumed", resumed)
    services: Any = SimpleNamespace(store=SimpleNamespace(journal_of=lambda _: []))
    with pytest.raises(LinkLost) as lost:
        fleet_resume.go_on_with(services, FIRST, lambda _: None, lambda: None, lambda saved: saved)
    hint = lost.value.hint or ""
    assert says in hint
    assert hint.endswith(f"fcctl tune --resume {FIRST}")
