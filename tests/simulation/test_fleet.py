"""Random stories of a search on several machines, with the true workflows and their threads; and bugs planted there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.tune import fleet
from orchestrator.tune import member as fleet_member
from orchestrator.tune import tunnels as fleet_ways
from tests.simulation.fleet import play
from tests.simulation.fleet_story import NAMES, Story, draw
from tests.simulation.mutants import never_let_go
from tests.support.tiers import sampled

#: The end of a run's id.
RANDOM = re.compile("-[0-9a-f]{6}\\b")


def outcome(seed: int) -> str | None:
    try:
        return play(draw(seed))
    except Exception as e:  # whatever it is, it is the finding
        return f"{type(e).__name__}: {e}"


@pytest.mark.parametrize("first", sampled(range(0, 36, 6), keep=(0, 6)))
def test_whatever_happens_to_its_machines_a_search_and_its_fleet_come_to_an_end_in_order(first: int) -> None:
    for seed in range(first, first + 6):
        assert outcome(seed) is None, seed


@pytest.mark.parametrize("refuses", [{"closed": frozenset({"l4"})}, {"closed": frozenset({"l4-2"})}, {"lies": True}])
def test_a_machine_that_gives_no_way_to_the_search_is_named(refuses: dict[str, Any]) -> None:
    for seed in range(3):
        assert play(Story(seed, NAMES, frozenset(NAMES), ("tune",), **refuses)) is None


def members_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_member.Member, "_is_told", lambda *_: True)
    patch.setattr(fleet_member.Member, "stop", lambda self, _: self.over.set())


def told_twice(patch: pytest.MonkeyPatch) -> None:
    said = fleet.FleetCoordinator._on_host_line

    def twice(self: Any, line: str) -> None:
        said(self, line)
        said(self, line)

    patch.setattr(fleet.FleetCoordinator, "_on_host_line", twice)


def never_let_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_ways.WorkerTunnel, "_use", lambda *_: None)


def no_way_without_a_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet.FleetCoordinator, "_leader_unusable", lambda *_: None)


#: With a story, from which on one that finds the bug is looked for, and how what is found begins.
BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], int, str]] = [
    (members_are_not_told, 235, "at its end the fleet took"),
    (told_twice, 0, "and heard:"),
    (never_let_in, 80, "was never in the search"),
    (never_let_go, 0, "without a word"),
    (no_way_without_a_word, 267, "the search continues on l4 only"),
]


@pytest.mark.full
@pytest.mark.parametrize(("plant", "seed", "says"), BUGS, ids=lambda bug: getattr(bug, "__name__", None))
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((failure for n in range(seed, seed + 60) if (failure := outcome(n)) is not None), "")
    assert says in found.splitlines()[0], found


def test_a_story_is_told_again_exactly() -> None:
    traces = []
    for _ in range(2):
        told: list[str] = []
        assert play(draw(9), told) is None
        traces.append([RANDOM.sub("", line) for line in told])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100
