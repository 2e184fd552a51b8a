"""Random schedules of faults against the true workflows; and bugs planted to see that they are found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.machines.provision.release import AGAIN_S, ReleaseRequest, release
from tests.simulation.cloud import LATENCY
from tests.simulation.episode import ZONES, Episode, play
from tests.simulation.judge import outcome
from tests.simulation.money_mutants import MONEY_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant, found_by
from tests.simulation.schedule import FiringPlan, Schedule, draw
from tests.simulation.shrink import shrink
from tests.simulation.world import Actor, Fault, Kind

#: Each time, and of `make test-all`; `make simulate` plays ten times as many, or as many as you like.
SCHEDULES, ALL_SCHEDULES, CHUNK = 100, 2000, 25
CHUNKS = [
    pytest.param(first, marks=[pytest.mark.full] if first >= SCHEDULES else [])
    for first in range(0, ALL_SCHEDULES, CHUNK)
]


@pytest.mark.parametrize("first", CHUNKS)
def test_whatever_goes_wrong_the_invariants_hold(first: int) -> None:
    for seed in range(first, first + CHUNK):
        failure = outcome(draw(seed))
        assert failure is None, f"make simulate N=1 SEED={seed}\n{draw(seed)}\n{failure}"


#: Schedules that found something once. What it was, and what it is now.
ONCE_FOUND = [
    # A run left the machine to another that was just waking it; that one was refused, and nobody stopped it.
    Schedule(6399, (Fault(8, "other"),), ("run",)),
    Schedule(6606, (Fault(9, "kill_after"), Fault(9, "other")), ("run", "ps"), release="delete"),
    # The laptop slept before it asked for the deletion; the machine stopped by itself meanwhile, and was billed on.
    Schedule(4334, (Fault(199, "sleep", 1221.0),), ("run",), release="delete", exists=False),
    # A run waited for its machine, off under it; the next one could not bring it home, and deleted its disk.
    Schedule(
        67246,
        (Fault(68, "preempt"), Fault(99, "preempt"), Fault(183, "interrupt")),
        ("session", "run", "run", "run", "go on"),
        release="delete",
        exists=False,
    ),
    # A session that was left half way was let go, and with its machine the disk that a run's results were on.
    Schedule(
        626, (Fault(43, "kill_after"), Fault(123, "interrupt")), ("session", "run"), release="delete", exists=False
    ),
    # A session and a run of one computer both looked, saw nothing, and made the machine in two zones.
    Schedule(43506, (Fault(3, "stockout", 305.0), Fault(48, "other")), ("session", "run", "ps"), exists=False),
    # A machine was kept on, and what it had cost since it was last seen was left of the day's cap for the next start.
    Schedule(840, (), ("run", "run"), release="keep", day_cap=0.7, free_disks=True, begins=1434599),
    # A machine could not be stopped, and what it might cost until its limit was left of the project's cap.
    Schedule(
        22849,
        (Fault(23, "cloud_down", 294.0),),
        ("run", "run", "run"),
        day_cap=1.58,
        project_cap=0.7,
        free_disks=True,
        begins=54181,
    ),
    # The disk of a machine was deleted by hand, a new one had its name, and the only copy of the old one was pruned.
    Schedule(
        0,
        (Fault(50, "stockout", 20000.0), Fault(84, "kill"), Fault(87, "deleted")),
        ("detach", "ps", "run", "run", "prune"),
        rebuild=True,
    ),
    # A run went on on another machine than it began on, and both machines' seconds were billed to the second one.
    Schedule(
        10407,
        (Fault(88, "stockout", 16498.0), Fault(143, "preempt")),
        ("run", "run", "wake"),
        release="delete",
        rebuild=True,
    ),
    # A start was interrupted before the machine ran, and billed as if it had run since its start before that one.
    Schedule(1042, (Fault(22, "interrupt"),), ("run", "go on", "go on", "ps")),
    Schedule(
        2610,
        (Fault(48, "interrupt"), Fault(56, "kill"), Fault(100, "interrupt"), Fault(135, "kill_after")),
        ("session", "run", "go on", "wake", "run", "ps"),
        month_cap=50.0,
    ),
    # What a killed run cost past midnight was all counted on the day before, and the new day's cap was whole.
    Schedule(
        3267,
        (Fault(21, "kill"),),
        ("run", "run", "run", "run", "ps", "run"),
        release="delete",
        exists=False,
        day_cap=0.59,
        free_disks=True,
        begins=56536,
    ),
    # The younger of two machines stayed on, because the cloud had said that its creation failed.
    Schedule(0, (Fault(5, "abroad"), Fault(11, "sleep", 0.5), Fault(28, "misreported")), ("run",), exists=False),
    # Ctrl-C while a machine was created: it was deleted before it ran, and a minute of it was billed.
    Schedule(940026, (Fault(19, "interrupt"),), ("run",), release="delete", builder=True),
    # Ctrl-C while the cloud had not begun a start yet: the machine was off, was called not started, and went on.
    Schedule(1, (Fault(1, "pending", 90.0), Fault(22, "interrupt")), ("run", "ps")),
    # The same while a creation was pending: there was no machine, and minutes later it ran.
    Schedule(1, (Fault(1, "pending", 90.0), Fault(15, "interrupt")), ("run", "ps"), exists=False),
    # A machine was still listed as stopped after its start was DONE, was called preempted, not started, and went on.
    Schedule(1, (Fault(1, "stale", 10.0),), ("run", "ps")),
    # The same of one that was created and was not listed yet; and seen by another process, after a kill.
    Schedule(1, (Fault(1, "stale", 10.0),), ("run", "ps"), exists=False),
    Schedule(1, (Fault(1, "stale", 10.0), Fault(33, "kill_after")), ("run", "ps")),
    # A run deleted the machine with the results of another workspace's run, whose controller had been killed.
    Schedule(
        357,
        (Fault(15, "beside"), Fault(70, "preempt"), Fault(138, "beside"), Fault(155, "kill")),
        ("session", "run", "run", "run", "run"),
        release="delete",
        exists=False,
        day_cap=1.38,
        project_cap=1.25,
        free_disks=True,
        begins=42767,
    ),
    # A run ended before the cloud had put its label on the machine, which was left to the run of the label before.
    Schedule(
        2800264,
        (Fault(10, "full", 56.0), Fault(17, "pending", 42.0), Fault(110, "full", 40.0)),
        ("tick", "serve"),
        exists=False,
        firings=FiringPlan(30, 0.59, 0.68, strictly=True),
    ),
    # A killed fcctl's request to create the machine came after another one on this computer had created it elsewhere.
    Schedule(550245, (Fault(7, "beside"), Fault(22, "kill_late", 7.0)), ("run",), exists=False, release="keep"),
    # The same of one that was created, and that the cloud did not list yet when its fcctl was killed.
    Schedule(
        672141,
        (Fault(11, "beside"), Fault(56, "stale", 7.0), Fault(72, "kill_after"), Fault(93, "kill")),
        ("rush",),
        exists=False,
    ),
    # Reads of machines became late while a start went on: the emulator showed a machine that was there as absent.
    Schedule(673631, (Fault(7, "beside"), Fault(33, "stale", 17.0)), ("run",)),
    # What two processes of one name spent was compared with the worst case of one.
    Schedule(673588, (Fault(2, "beside"), Fault(23, "kill"), Fault(205, "beside")), ("run", "run"), stop_at=0.051),
]


@pytest.mark.parametrize("schedule", ONCE_FOUND, ids=str)
def test_what_was_found_once_stays_mended(schedule: Schedule) -> None:
    assert outcome(schedule) is None


#: A run that creates its machine, one that wakes it, one that a builder compiles for; and a session.
KILLED = {
    "created": Schedule(1, (), ("run", "ps"), exists=False),
    "woken": Schedule(1, (), ("run", "ps")),
    "with a builder": Schedule(1, (), ("run", "ps"), builder=True),
    "session": Schedule(1, (), ("session", "session stop", "ps")),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kill", "kill_after"])
@pytest.mark.parametrize("schedule", KILLED.values(), ids=KILLED)
def test_killed_at_every_line_of_its_journals(schedule: Schedule, kind: Kind, tmp_path: Path) -> None:
    """A few of them by SIGKILL: test_killed_with_a_machine_on, test_killed_then_audited, test_builder and
    test_sessions."""
    played = Episode(schedule, tmp_path)
    played.play()
    written = re.compile(r": journal |: session (?!ended|stop)")
    lines = [int(line.split()[1]) for line in played.world.trace if written.search(line)]
    assert len(lines) >= (6 if "session" in schedule.commands else 15)
    failures = [outcome(replace(schedule, faults=(Fault(at, kind),))) for at in lines]
    assert list(filter(None, failures)) == []


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_a_clock_that_is_set_while_a_machine_is_had_ends_nothing(jump: float, tmp_path: Path) -> None:
    schedule = Schedule(1, (Fault(20, "skew", jump), Fault(3, "stockout", 300.0)), ("run", "ps"), exists=False)
    played = Episode(schedule, tmp_path)
    played.play()
    assert [line.split()[1:] for line in played.world.trace if ": run " in line] == [["fcctl-0:", "run", "ended"]]


def test_of_two_deletions_of_one_machine_neither_ends_the_other_for_ever(tmp_path: Path) -> None:
    """The second request ends the first one; whose was ended waits for the other, and does not end that in turn."""
    played = Episode(Schedule(0, (), ("run",)), tmp_path)
    world, cloud, target = played.world, played.cloud, played.here.target
    path = f"zones/{ZONES[0]}/instances/{target.instance}"
    cloud.ask("POST", f"{path}/start", {}, {})
    world.advance(60)
    began = world.now
    world.at(began + 8, lambda: cloud.ask("DELETE", path, {}, {}))
    (done,) = release(
        played.services(Actor("fcctl")), target, [ReleaseRequest(ZONES[0])], "delete", lambda *_, **__: None
    )
    assert done.how == "deleted"
    kinds = [operation.resource["operationType"] for operation in cloud.core.operations.values()]
    assert kinds.count("delete") == 2
    assert world.now - began < 8 + LATENCY.delete + 3 * AGAIN_S


@pytest.mark.full
@pytest.mark.parametrize("mutant", [*MUTANTS, *MONEY_MUTANTS], ids=lambda m: m.name)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = found_by(mutant)
    assert found is not None, f"600 schedules did not find: {mutant.name}"
    assert found.startswith(mutant.says)


def test_a_failure_is_made_as_short_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    next(m for m in MUTANTS if m.name == "no fence").plant(monkeypatch)
    long = Schedule(1, (Fault(3, "skew", 900), Fault(70, "cut", 600), Fault(90, "kill")), ("run", "ps", "ps"))
    assert play(long) is not None
    short = shrink(long, lambda s: outcome(s) is not None)
    assert (short.faults, short.commands) == ((), ("run",))


@pytest.mark.parametrize("seed", [17, 37], ids=["alone", "in company"])
def test_a_schedule_replays_exactly(seed: int, tmp_path: Path) -> None:
    traces = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        played = Episode(draw(seed), tmp_path / name)
        played.play()
        traces.append([line.split("bench-l4-")[0] for line in played.world.trace])  # the rest is a run's random id
    assert traces[0] == traces[1]
