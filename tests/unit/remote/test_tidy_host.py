"""What goes from a host's folder by age and by size, and what never does."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from fcctl_remote.base import bundles, files
from fcctl_remote.base.layout import Layout

DAY = 86400.0


def aged(path: Path, days: float) -> None:
    at = time.time() - days * DAY
    os.utime(path, (at, at))


def program(layout: Layout, letter: str, days: float) -> str:
    name = letter * 64
    archive = Path(layout.runner) / f"{name}.pyz"
    (Path(layout.runner) / f"{name}.d" / "fcctl_remote").mkdir(parents=True)
    archive.write_bytes(b"x")
    aged(archive, days)
    return name


def tree(layout: Layout, name: str, days: float, size: int = 10) -> Path:
    place = Path(layout.tree(name))
    (place / "src").mkdir(parents=True)
    (place / "src/kernel.cu").write_bytes(b"x" * size)
    for path in (Path(layout.index(name)), Path(layout.tree_lock(name))):
        path.write_text("{}")
        aged(path, days)
    aged(place, days)
    return place


def programs(layout: Layout) -> set[str]:
    return {name[0] for name in os.listdir(layout.runner)}


def test_programs_that_nobody_used_for_two_weeks_go_but_the_newest_three(layout: Layout) -> None:
    for letter, days in zip("abcdef", (1, 2, 13, 13.5, 15, 400), strict=True):
        program(layout, letter, days)
    bundles.tidy(layout)
    assert programs(layout) == set("abcd")
    for letter, days in zip("abcd", (50, 60, 70, 80), strict=True):
        aged(Path(layout.runner) / f"{letter * 64}.pyz", days)
    os.unlink(bundles.mark(layout))
    bundles.tidy(layout)
    assert programs(layout) == set("abc")


def test_a_program_in_use_stays(layout: Layout) -> None:
    names = [program(layout, letter, 100 + number) for number, letter in enumerate("abcde")]
    with (Path(layout.locks) / f"runner-{names[4]}.lock").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        bundles.tidy(layout)
        assert programs(layout) == set("abce")
    os.unlink(bundles.mark(layout))
    bundles.tidy(layout)
    assert programs(layout) == set("abc")


def test_what_an_interrupted_upload_left_goes_after_a_day(layout: Layout) -> None:
    old, new = Path(layout.runner) / f".{'a' * 64}.123", Path(layout.runner) / f"{'b' * 64}.d.partial-9"
    old.write_bytes(b"x")
    new.mkdir()
    aged(old, 2)
    bundles.tidy(layout)
    assert os.listdir(layout.runner) == [new.name]


def test_trees_that_nobody_used_for_a_month_go(layout: Layout) -> None:
    old, new = tree(layout, "old-1", 31), tree(layout, "new-1", 29)
    bundles.tidy(layout)
    assert (old.exists(), new.exists()) == (False, True)
    assert os.listdir(layout.indexes) == ["new-1.json"]


def test_a_tree_in_use_stays(layout: Layout) -> None:
    old = tree(layout, "old-1", 90)
    with files.locked(layout.tree_lock("old-1")):
        bundles.tidy(layout)
    assert old.exists()


def test_trees_that_take_too_much_room_go_the_longest_unused_first(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "TREES_BYTES", 2500)
    found = [tree(layout, f"t-{days}", days, 1000) for days in (0.1, 0.2, 0.5, 3, 4)]
    bundles.tidy(layout)
    assert [place.exists() for place in found] == [True, True, True, False, False], "those of today stay in any case"


def test_on_a_full_disk_only_the_trees_of_today_stay(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles.tidy(layout)  # today's look
    monkeypatch.setattr(bundles, "LOW_BYTES", 1 << 60)
    today, old = tree(layout, "today-1", 0.5), tree(layout, "older-1", 1.5)
    bundles.tidy(layout)
    assert (today.exists(), old.exists()) == (True, False)


def test_it_looks_once_a_day(layout: Layout) -> None:
    bundles.tidy(layout)
    old = tree(layout, "old-1", 90)
    bundles.tidy(layout)
    assert old.exists()
    aged(Path(bundles.mark(layout)), 1.1)
    bundles.tidy(layout)
    assert not old.exists()


def test_runs_that_were_never_submitted_or_half_deleted_go_after_a_day(layout: Layout) -> None:
    runs = Path(layout.runs)
    ids = [f"2026112{day}t081530z-bench-l4-3fa9c1" for day in range(4)]
    for name in (*ids, f".forget-{ids[0]}", "notes of a person"):
        (runs / name / "src").mkdir(parents=True)
    (runs / ids[1] / "plan.json").write_text("{}")
    (runs / ids[2] / "outcome.json").write_text("{}")
    for folder in runs.iterdir():
        aged(folder, 0.5 if folder.name == ids[3] else 2)
    bundles.tidy(layout)
    assert sorted(path.name for path in runs.iterdir()) == [*ids[1:], "notes of a person"]
