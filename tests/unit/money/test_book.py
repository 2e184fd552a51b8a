"""The book of spending as a file: what is read of it, and what a crash or damage leaves."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import ConflictError, DiskError, FcctlError
from orchestrator.money import book as books
from orchestrator.money.billable import ResourceRecord, histories, standing_lines, without_repetitions
from orchestrator.money.book import FiringCost, SpendingBook
from orchestrator.money.ledger import RunUsage, UsageRecord, spans
from orchestrator.providers import registry
from orchestrator.providers.gcp.list_prices import LIST_PRICES
from orchestrator.results.records import CostRecord
from tests.support.spending import book_in, reservation
from tests.support.stores import NOVEMBER

MACHINE = UsageRecord(
    project="p", zone="z", name="vm", instance_id="1", target="l4", usd_per_hour=None, started=1.0, seen=2.0
)
DISK = ResourceRecord(project="p", kind="disk", place="z", name="vm", gb=100, seen=2.0)


def usage(run_id: str, usd: float = 1.0) -> RunUsage:
    return RunUsage(run_id=run_id, job="j", target="l4", created="", cost=CostRecord(usd=usd, billed_s=1.0))


@pytest.fixture
def book(tmp_path: Path) -> SpendingBook:
    return book_in(tmp_path)


def again(book: SpendingBook) -> SpendingBook:
    """The same, as another process finds it."""
    return book_in(book._folder)


def path_of(book: SpendingBook) -> Path:
    return book._folder / books.NAME


def reserve(book: SpendingBook, *names: str) -> None:
    for name in names:
        with book.changing() as change:
            change.reserve(reservation(name))


def compact(book: SpendingBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """By writing so much of no use that whoever writes next writes the book anew."""
    size = path_of(book).stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(books, "COMPACT_BYTES", 1)
        with book.changing() as change:
            for n in range(10 + size // 200):
                change.reserve(reservation(f"gone-{n}"))
                change.release(reservation(f"gone-{n}"))
    assert b"gone-" not in path_of(book).read_bytes()


def opened(book: SpendingBook) -> list[str]:
    return list(book.state().open())


# ------------------------------------------------------------------------------------------------------ what it holds
def test_what_the_cloud_said_is_read_as_it_was_written(book: SpendingBook) -> None:
    assert (book.usage(), book.resources()) == ([], [])
    book.add_usage(MACHINE)
    book.add_resource(DISK)
    book.add_usage(MACHINE.model_copy(update={"stopped": 9.0}))
    for reader in (book, again(book)):
        assert [word.stopped for word in reader.usage()] == [None, 9.0]
        assert reader.resources() == [DISK]


def test_a_reservation_is_open_until_it_is_released(book: SpendingBook) -> None:
    reserve(book, "a", "b")
    with book.changing() as change:
        change.release(reservation("a"))
    assert opened(book) == opened(again(book)) == ["b"]


@pytest.mark.parametrize("later_s", [1.0, -86400.0], ids=["later", "after the clock was set back"])
def test_a_reservation_may_be_made_again_under_its_name(book: SpendingBook, later_s: float) -> None:
    """As for a machine that the next run keeps on, too."""
    reserve(book, "a")
    for at in (NOVEMBER, NOVEMBER + later_s):
        with book.changing() as change:
            change.release(reservation("a", at=at))
            change.reserve(reservation("a", 2.0, at=NOVEMBER + later_s))
        assert [one.usd for one in again(book).state().open().values()] == ([2.0] if at == NOVEMBER else [])


def test_the_last_word_on_a_run_and_a_firing_counts(book: SpendingBook) -> None:
    firing = FiringCost(firing="f", schedule="ws/nightly", due=1.0, usd=3.0)
    with book.changing() as change:
        change.add("run", usage("r", 2.0))
        change.add("firing", firing)
        change.add("run", usage("r", 1.5))
        change.add("firing", firing.model_copy(update={"usd": 0.5, "ended": True}))
    state = again(book).state()
    assert [found.cost.usd for _, found in state.runs().values()] == [1.5]
    assert [found.usd for found in state.firings().values()] == [0.5]


def test_lines_say_whose_they_are(tmp_path: Path) -> None:
    for project in ("one", "two"):
        book_in(tmp_path, project=project, results=tmp_path / project).add_usage(MACHINE)
    lines = book_in(tmp_path).state().lines("power")
    assert [(line.project, line.results) for line in lines] == [
        ("one", str(tmp_path / "one")),
        ("two", str(tmp_path / "two")),
    ]


def test_what_a_later_version_wrote_is_passed_over_and_kept(
    book: SpendingBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with book.changing() as change:
        change.add("audit", {"found": 1})
        change.add("run", {"run_id": "r", "cost": "of another form"})
        change.add("run", usage("s"))
    assert list(again(book).state().runs()) == ["s"]
    compact(book, monkeypatch)
    assert [line.data for line in again(book).state().lines("audit")] == [{"found": 1}]
    assert [line.data["run_id"] for line in again(book).state().lines("run")] == ["r", "s"]


def test_nothing_is_written_if_the_change_is_given_up(book: SpendingBook) -> None:
    reserve(book, "a")
    before = path_of(book).read_bytes()
    with suppress(KeyboardInterrupt), book.changing() as change:
        change.reserve(reservation("b"))
        raise KeyboardInterrupt
    assert path_of(book).read_bytes() == before
    assert opened(book) == ["a"]


def test_only_what_is_new_is_read(book: SpendingBook, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    parse = books._parse
    monkeypatch.setattr(books, "_parse", lambda content, state: (sizes.append(len(content)), parse(content, state))[1])
    reserve(book, "a", "b")
    reader = again(book)
    reader.state()
    whole, before = path_of(book).stat().st_size, len(sizes)
    reserve(book, "c")
    assert opened(reader) == ["a", "b", "c"]
    assert opened(reader) == ["a", "b", "c"]
    new = path_of(book).stat().st_size - whole
    assert sizes[before - 1] == whole
    assert sorted(sizes[before:]) == [0, 0, new, new], "the writer, and the reader"


def test_a_book_that_is_gone_is_empty_and_is_made_again(book: SpendingBook) -> None:
    reserve(book, "a")
    path_of(book).unlink()
    assert opened(book) == []
    reserve(book, "b")
    assert opened(again(book)) == ["b"]


# ------------------------------------------------------------------------------------------------------------- damage
def test_what_a_crash_tore_is_cut_off_by_the_next_line(book: SpendingBook) -> None:
    reserve(book, "a")
    whole = path_of(book).read_bytes()
    reserve(book, "b")
    line = path_of(book).read_bytes()[len(whole) :]
    for torn in (line[:1], line[:40], line[:-1], b"\0" * len(line), b"\0" * 20 + line[20:]):
        path_of(book).write_bytes(whole + torn)
        reader = again(book)
        assert opened(reader) == ["a"]
        assert reader.state().damaged == []
        reserve(reader, "c")
        assert opened(again(book)) == ["a", "c"]
        assert path_of(book).read_bytes().startswith(whole)
        assert len(path_of(book).read_bytes().splitlines()) == 2


def test_a_damaged_line_costs_only_itself_and_is_counted(book: SpendingBook) -> None:
    reserve(book, "a", "b", "c")
    lines = path_of(book).read_bytes().splitlines(keepends=True)
    for damaged in (lines[1].replace(b"1.0", b"0.0"), b"\0" * (len(lines[1]) - 1) + b"\n", b"nonsense\n", b"\n"):
        path_of(book).write_bytes(b"".join([lines[0], damaged, lines[2]]))
        state = again(book).state()
        assert (list(state.open()), state.damaged) == (["a", "c"], [2])
    reserve(book, "d")
    assert opened(book) == opened(again(book)) == ["a", "c", "d"]
    assert again(book).state().damaged == [2]


def test_damage_is_put_aside_and_kept(book: SpendingBook) -> None:
    reserve(book, "a", "b", "c")
    assert book.set_damage_aside() is None
    lines = path_of(book).read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], b"x" + lines[1][1:], lines[2]])
    path_of(book).write_bytes(damaged)
    mender = again(book)
    aside = mender.set_damage_aside()
    assert aside is not None
    assert Path(aside).read_bytes() == damaged
    for reader in (mender, again(book)):
        assert (opened(reader), reader.state().damaged) == (["a", "c"], [])
    assert mender.set_damage_aside() is None


# ------------------------------------------------------------------------------------------------------ who may read it
def test_who_may_read_it(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        book = book_in(tmp_path / "state")
        book.add_usage(MACHINE)
        prices = registry.write_prices(LIST_PRICES)
        modes = [path_of(book).stat().st_mode & 0o777]
        compact(book, monkeypatch)
        modes.append(path_of(book).stat().st_mode & 0o777)
        path_of(book).write_bytes(b"nonsense\n" + path_of(book).read_bytes())
        aside = Path(again(book).set_damage_aside() or "")
        modes += [path.stat().st_mode & 0o777 for path in (path_of(book), aside)]
    finally:
        os.umask(before)
    assert prices.is_relative_to(private_home)
    assert modes == [0o600] * 4
    folders = (book._folder, prices.parent)
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700, 0o700]
    assert (book._folder / books.LOCK).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", [books.NAME, books.LOCK])
def test_a_link_is_no_ledger(tmp_path: Path, name: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").touch()
    (tmp_path / "state" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match="ledger"):
        book_in(tmp_path / "state").add_usage(MACHINE)
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_a_folder_that_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder would be")
    book = book_in(tmp_path / "state")
    with pytest.raises(FcctlError, match="could not write the ledger"), book.changing():
        raise AssertionError("the block runs without the lock")


def test_whoever_waits_too_long_is_told_for_what(book: SpendingBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "PATIENCE_S", 0.0)
    with (
        book.changing(),
        pytest.raises(ConflictError, match="another fcctl has locked the ledger") as refused,
        again(book).changing(),
    ):
        raise AssertionError("two at once")
    assert refused.value.cause == f"it holds the lock {book._folder / books.LOCK}"
    assert refused.value.hint is not None
    assert "fuser" in refused.value.hint
    assert (books.IMPATIENCE_S, books.COMPACT_BYTES) == (1.0, 1 << 20)


# --------------------------------------------------------------------------------------------------------- compaction
def machine(instance: str, started: float, **changes: Any) -> UsageRecord:
    return MACHINE.model_copy(update={"instance_id": instance, "started": started, "seen": started + 1, **changes})


def much(book: SpendingBook, turns: int = 40) -> None:
    """A machine that is looked at again and again, runs that come and go, and a disk that stands."""
    for turn in range(turns):
        with book.changing() as change:
            change.add("power", machine("1", 1.0, seen=2.0 + turn))
            change.reserve(reservation(f"run-{turn}"))
            change.add("run", usage(f"run-{turn // 2}", turn))
            change.add("firing", FiringCost(firing=f"f-{turn // 4}", schedule="ws/n", due=1.0, usd=turn))
            change.add("resource", DISK.model_copy(update={"seen": 2.0 + turn * 7200}))
            change.add("notice", {"key": f"{turn // 8}", "state": "sent" if turn % 2 else "failed"})
            if turn != 3:
                change.release(reservation(f"run-{turn}"))


def facts(book: SpendingBook) -> tuple[object, ...]:
    """What callers ask a book."""
    state = book.state()
    return (
        state.open(),
        {name: (line.project, line.results, run) for name, (line, run) in state.runs().items()},
        state.firings(),
        spans(book.usage()),
        {line.data["key"]: line.data["state"] for line in state.lines("notice")},
        standing_lines(book.resources(), 40 * 7200.0, UTC),
    )


def test_compaction_keeps_what_counts(book: SpendingBook, monkeypatch: pytest.MonkeyPatch) -> None:
    much(book)
    with book.changing() as change:
        change.add("power", machine("1", 500.0, stopped=600.0))
        change.add("power", machine("1", 500.0, stopped=650.0, bound=True))
    before, size = facts(again(book)), path_of(book).stat().st_size
    compact(book, monkeypatch)
    assert path_of(book).stat().st_size < size / 2
    assert facts(book) == facts(again(book)) == before
    assert list(book.state().open()) == ["run-3"]
    reserve(book, "later")
    assert list(again(book).state().open()) == ["run-3", "later"]


WORDS = st.builds(
    lambda seen, name, created, gone, gb, usd, by_machine: DISK.model_copy(
        update={"seen": seen, "name": name, "created": created, "gone": gone, "gb": gb, "usd_per_month": usd,
                "by_machine": by_machine}
    ),
    seen=st.sampled_from([n * 1800.0 for n in range(12)]), name=st.sampled_from("ab"),
    created=st.sampled_from([None, None, 0.0, 9000.0]), gone=st.sampled_from([None, None, None, 12000.0]),
    gb=st.sampled_from([100, 100, 200]), usd=st.sampled_from([None, 10.0, 10.0]), by_machine=st.booleans(),
)  # fmt: skip


def test_of_a_disk_that_stands_for_a_year_a_few_words_are_kept() -> None:
    hours = [DISK.model_copy(update={"seen": n * 3600.0, "gb": 100 if n < 4000 else 200}) for n in range(8760)]
    assert [(word.seen / 3600, word.gb) for word in without_repetitions(hours)] == [
        (0, 100), (1, 100), (3999, 100), (4000, 200), (8759, 200),
    ]  # fmt: skip


@given(st.lists(WORDS, max_size=8), st.sampled_from([9000.0, 30_000.0, 2_000_000.0]))
def test_resources_cost_the_same_without_repetitions(words: list[ResourceRecord], now: float) -> None:
    repeated = [word for word in words for _ in range(3)]
    kept = without_repetitions(repeated)
    assert standing_lines(kept, now, UTC) == standing_lines(repeated, now, UTC)
    last = {life.last.key: life.last for life in histories(repeated)}
    assert {life.last.key: life.last for life in histories(kept)} == last


def test_a_large_book_is_compacted_by_whoever_writes_and_others_read_on(
    book: SpendingBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = again(book)
    much(book, 4)
    assert list(reader.state().open()) == ["run-3"]
    monkeypatch.setattr(books, "COMPACT_BYTES", 4096)
    much(book)
    assert path_of(book).stat().st_size < 60_000
    assert facts(reader) == facts(again(book))


def test_a_small_book_and_one_that_is_damaged_are_left_as_they_are(
    book: SpendingBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "write_atomic", lambda *_: pytest.fail("it was written anew"))
    much(book)
    path_of(book).write_bytes(b"nonsense\n" + path_of(book).read_bytes())
    monkeypatch.setattr(books, "COMPACT_BYTES", 1)
    reserve(again(book), "one")
    assert again(book).state().damaged == [1]


def test_a_reader_that_was_away_for_long_reads_the_new_file_from_its_beginning(book: SpendingBook) -> None:
    """A file system gives the number of a deleted file to the next one."""
    reserve(book, *"abc")
    reader = again(book)
    assert opened(reader) == ["a", "b", "c"]
    other = book_in(book._folder / "other")
    reserve(other, *(f"other-{n}" for n in range(9)))
    content = path_of(other).read_bytes()
    with path_of(book).open("r+b") as file:  # the same inode, longer than what was read of it
        file.truncate()
        file.write(content)
    assert opened(reader) == [f"other-{n}" for n in range(9)]
    assert reader.state().damaged == []


def test_threads_of_one_process_share_what_was_read(book: SpendingBook) -> None:
    """The page reads while a command of it writes."""
    clock: Any = SimpleNamespace(now=lambda: 1.0)
    shared = SpendingBook(book._folder, clock, book.scope)
    reserve(shared, "a")
    with shared.changing() as change:
        assert opened(shared) == ["a"], "who decides may ask"
        change.reserve(reservation("b"))
    assert opened(shared) == ["a", "b"]
