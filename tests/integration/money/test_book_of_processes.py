"""The book of spending, and the one function that every start asks, with real processes that are at it at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import BudgetError
from orchestrator.money import book as books
from orchestrator.runs.cost.owners import reservation
from orchestrator.runs.cost.spending import reserve
from tests.support.budgets import listed
from tests.support.money_world import BOX, World
from tests.support.spending import book_in
from tests.support.spending import reservation as made
from tests.support.stores import make_id
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

WRITERS, CHANGES, STARTS, ROUNDS = 5, 50, 4, 25
#: Each process is a copy of one that has imported what they need.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.money_world"])


def at_once(act: Callable[..., None], count: int, *args: Any) -> list[Any]:
    """``act(number, begin, ...)`` in so many processes, which all wait for one another at ``begin``."""
    begin = CONTEXT.Barrier(count)
    processes = [CONTEXT.Process(target=act, args=(number, begin, *args)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return processes


# ------------------------------------------------------------------------------------------------------------ the file
def write(number: int, begin: Any, folder: Path, compact_bytes: int) -> None:
    books.COMPACT_BYTES = compact_bytes
    book = book_in(folder)
    begin.wait()
    for n in range(CHANGES):
        with book.changing() as change:
            change.reserve(made(f"{number}-{n}", at=n, owner_id="x" * (n * 37 % 400)))
            if n % 5:
                change.release(made(f"{number}-{n}", at=n))
            change.add("run", {"run_id": f"{number}-{n % 7}", "of": n})


@pytest.mark.parametrize("compact_bytes", [books.COMPACT_BYTES, 4096], ids=["appended", "compacted meanwhile"])
def test_of_many_that_write_at_once_nothing_is_lost_and_no_line_torn(tmp_path: Path, compact_bytes: int) -> None:
    reader = book_in(tmp_path)
    processes = at_once(write, WRITERS, tmp_path, compact_bytes)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    open_ = {f"{number}-{n}" for number in range(WRITERS) for n in range(0, CHANGES, 5)}
    for book in (reader, book_in(tmp_path)):
        state = book.state()
        assert set(state.open()) == open_
        assert state.damaged == []
        last = {line.data["run_id"]: line.data["of"] for line in state.lines("run")}
        assert last == {f"{number}-{k}": 49 - (49 - k) % 7 for number in range(WRITERS) for k in range(7)}
    lines = (tmp_path / books.NAME).read_bytes().splitlines()
    if compact_bytes == 4096:
        assert len(lines) < WRITERS * CHANGES
    else:
        assert len(lines) == WRITERS * CHANGES


def read(number: int, begin: Any, folder: Path, over: Any) -> None:
    """Every look finds what was there before the writers began, whoever writes the book anew."""
    book = book_in(folder)
    begin.wait()
    looks = 0
    while not over.is_set() or looks < 10:
        looks += 1
        state = book.state()
        assert "kept" in state.open()
        assert state.damaged == []


def test_whoever_reads_meanwhile_finds_a_whole_book(tmp_path: Path) -> None:
    with book_in(tmp_path).changing() as change:
        change.reserve(made("kept"))
    over = CONTEXT.Event()
    begin = CONTEXT.Barrier(3)
    readers = [CONTEXT.Process(target=read, args=(n, begin, tmp_path, over)) for n in range(2)]
    writer = CONTEXT.Process(target=write, args=(0, begin, tmp_path, 512))
    for process in (*readers, writer):
        process.start()
    writer.join()
    over.set()
    for process in readers:
        process.join()
    assert [process.exitcode for process in (*readers, writer)] == [0, 0, 0]


def hold(number: int, begin: Any, folder: Path) -> None:
    with book_in(folder).changing() as change:
        change.reserve(made("never written"))
        begin.wait()
        signal.pause()


def test_the_lock_of_a_killed_process_is_free_and_nothing_of_its_change_is_there(tmp_path: Path) -> None:
    begin = CONTEXT.Barrier(2)
    process = CONTEXT.Process(target=hold, args=(0, begin, tmp_path))
    process.start()
    begin.wait()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    book = book_in(tmp_path)
    with book.changing() as change:
        change.reserve(made("next"))
    assert list(book_in(tmp_path).state().open()) == ["next"]


# ---------------------------------------------------------------------------------------------------------- one starts
def start(number: int, begin: Any, folder: Path, started: Any) -> None:
    """Again and again a start, for which another month's cap is; every other time from a checkout of its own."""
    for turn in range(ROUNDS):
        world = World(folder / f"ws-{turn}-{number % (1 + turn % 2)}", folder / f"state-{turn}")
        world.services.budget = listed(per_month_usd=1.5)
        wanted = reservation(world.services, "run", make_id(), BOX, 1.0)
        begin.wait()
        with suppress(BudgetError):
            reserve(world.services, wanted)
            started.put((turn, wanted.reservation_id))


def test_of_several_that_start_at_once_under_a_cap_that_fits_one_one_starts(tmp_path: Path) -> None:
    started = CONTEXT.Queue()
    processes = at_once(start, STARTS, tmp_path, started)
    assert [process.exitcode for process in processes] == [0] * STARTS
    found = sorted(started.get(timeout=240) for _ in range(ROUNDS))
    assert started.empty()
    for turn in range(ROUNDS):
        assert list(book_in(tmp_path / f"state-{turn}").state().open()) == [found[turn][1]]
    assert [turn for turn, _ in found] == list(range(ROUNDS))


# ------------------------------------------------------------------------------------------------------- real commands
#: It goes on until all others have come to their end: what one did cost in the end may leave enough for another one.
#: Ten minutes are 36 dollars, and the month's cap pays for one.
JOB = "budget: {{minutes: 10}}\nsteps:\n  - {{id: greet, run: 'until [ -e {over} ]; do sleep 0.1; done'}}\n"
MACHINE = '\n[targets.m{n}]\nkind = "local"\nusd_per_hour = 216.0\nroot = "{root}"\n'
COMMANDS = 6


@pytest.mark.full
def test_of_six_commands_in_two_checkouts_of_a_project_one_starts(tmp_path: Path, private_home: Path) -> None:
    for attempt in range(4):
        home, over = private_home / f"{attempt}", tmp_path / f"all-others-ended-{attempt}"
        home.mkdir()
        checkouts = [Workspace(tmp_path / f"{attempt}-{number}", home) for number in range(2)]
        for checkout in checkouts:
            checkout.job("hello", JOB.format(over=over))
            with (checkout.root / "fcctl.toml").open("a") as config:
                config.write("[budget]\nper_month_usd = 36.4\n")
                config.writelines(MACHINE.format(n=n, root=tmp_path / f"{attempt}-m{n}") for n in range(COMMANDS))
        started = [checkouts[n % 2].start("--json", "--yes", "run", "hello", "--on", f"m{n}") for n in range(COMMANDS)]
        wait_for(lambda: sum(process.poll() is None for process in started) <= 1)  # noqa: B023 (it has ended by then)
        over.touch()
        said = [process.communicate()[1] for process in started]
        assert sorted(process.returncode for process in started) == [0, *[5] * (COMMANDS - 1)], said
        refused = [err for process, err in zip(started, said, strict=True) if process.returncode]
        assert all("of the month's cap of" in json.loads(err.splitlines()[-1])["error"]["message"] for err in refused)
