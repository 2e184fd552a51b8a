"""A member between searches: what it makes of what it is told, and of workers that come and go."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_tune.errors import MissingDependency
from fcctl_tune.workers import member
from fcctl_tune.workers.member import WAIT_S, Member
from fcctl_tune.workers.membership import PATIENCE_S, Join
from fcctl_tune.workers.worker import DISMISSED, GOODBYE, JOINED, LOST


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(member, "time", made)
    return made


def one(tmp_path: Path) -> Member:
    path = str(tmp_path / "join.json")
    return Member(Namespace(host="b", join=path, work=str(tmp_path)))


class Pool:
    """Whose worker ends at the first look with ``code``, having written ``name``."""

    def __init__(self, folder: Path, name: str, code: int) -> None:
        self.folder, self.name, self.code = folder, name, code

    def tell(self, address: str, pem: str | None) -> None: ...

    def ended(self) -> list[Any]:
        (self.folder / self.name).write_text("enough is known")
        return [SimpleNamespace(process=SimpleNamespace(returncode=self.code))]


def test_a_search_that_let_it_in_and_was_gone_at_once_was_there(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    made, join = one(tmp_path), Join(4711)
    pool: Any = Pool(tmp_path, JOINED, LOST)
    assert made._work_for(pool, join, str(tmp_path)) is None
    assert made.joined == 1
    assert "the search does not answer" in capsys.readouterr().out
    clock.sleep(PATIENCE_S - 1)
    assert not made._is_over()
    clock.sleep(2)
    assert made._is_over(), "its patience counts from then"


def test_one_that_could_not_join_waits_as_before(tmp_path: Path, clock: Clock) -> None:
    made = one(tmp_path)
    pool: Any = Pool(tmp_path, "nothing", LOST)
    assert made._work_for(pool, Join(4711), str(tmp_path)) is None
    assert made.joined == 0
    clock.sleep(WAIT_S - 1)
    assert not made._is_over()
    clock.sleep(2)
    with pytest.raises(MissingDependency, match="no search answered within 1800 s"):
        made._is_over()


def test_a_goodbye_ends_it(tmp_path: Path) -> None:
    pool: Any = Pool(tmp_path, GOODBYE, DISMISSED)
    assert one(tmp_path)._work_for(pool, Join(4711), str(tmp_path)) == "enough is known"
    assert os.listdir(tmp_path) == [GOODBYE]
