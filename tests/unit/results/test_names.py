from __future__ import annotations

import pytest

from orchestrator.base.clock import iso
from orchestrator.base.errors import RunNotFound
from orchestrator.results.look import named, show
from orchestrator.results.store.store import FileStore
from tests.support.stores import NOVEMBER, begin, completed, make_id


@pytest.fixture
def runs(store: FileStore) -> dict[str, str]:
    """Three complete runs and an active one, oldest first."""
    made = {}
    for number, (name, job, token) in enumerate(
        [("a", "bench", "3fa9c1"), ("b", "phase1", "77aa01"), ("c", "bench", "00aa01")]
    ):
        when = NOVEMBER + 100 * number
        made[name] = completed(store, make_id(job, at=when, token=token), job=job, created=iso(when))
    made["active"] = make_id("tune", at=NOVEMBER + 1000, token="beef00")
    begin(store, made["active"], "tune").release()
    return made


def test_every_way_to_name_a_run(store: FileStore, runs: dict[str, str]) -> None:
    for name in runs.values():
        assert store.resolve(name) == name
        assert store.resolve(name.upper()) == name
        assert store.resolve(name[:-2]) == name
    assert store.resolve("3fa9c1") == runs["a"]
    assert store.resolve("a9c1") == runs["a"]
    assert store.resolve("beef00") == runs["active"]
    with pytest.raises(RunNotFound):  # a part in the middle, such as a job's name, is none
        store.resolve(runs["a"][4:-4])
    assert store.resolve(" last ") == runs["active"]
    assert store.resolve("last:bench") == runs["c"]
    assert store.resolve("last:tune") == runs["active"]
    assert [store.resolve(f"last~{n}") for n in range(4)] == [runs[name] for name in ("active", "c", "b", "a")]
    assert store.resolve("last~") == runs["c"]
    assert store.resolve("last:bench~1") == runs["a"]
    assert [named(store, f"last~{n}") for n in (0, 2)] == [[runs["c"]], [runs["a"]]], "of the complete ones"
    assert show(store, "last:bench~1").record.run_id == runs["a"]


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("last~4", "there are only 4 runs", "see them: fcctl results ls"),
        ("last:phase1~1", "there is only 1 run of job 'phase1'", "see them: fcctl results ls --job phase1"),
        ("last:nope~1", "no run of job 'nope' yet", "start one: fcctl run nope"),
    ],
)
def test_so_many_there_are_not(store: FileStore, runs: dict[str, str], name: str, said: str, hint: str) -> None:
    with pytest.raises(RunNotFound) as raised:
        store.resolve(name)
    assert (raised.value.message, raised.value.hint) == (said, hint)
    with pytest.raises(RunNotFound, match="complete run") as raised:
        show(store, name)
    assert str(raised.value.hint).endswith("see active runs: fcctl ps")


@pytest.mark.parametrize("name", ["aa01", "2026"])
def test_an_ambiguous_name_lists_candidates(store: FileStore, runs: dict[str, str], name: str) -> None:
    with pytest.raises(RunNotFound, match="matches several") as raised:
        store.resolve(name)
    assert runs["b"] in str(raised.value.hint)
    assert runs["c"] in str(raised.value.hint)


@pytest.mark.parametrize(("count", "more"), [(4, False), (5, True)])
def test_of_many_candidates_four_are_named(store: FileStore, count: int, more: bool) -> None:
    for number in range(count):
        begin(store, make_id(at=NOVEMBER + number, token=f"{number:04}ee")).release()
    with pytest.raises(RunNotFound) as raised:
        store.resolve("ee")
    assert str(raised.value.hint).count("-phase1-l4-") == 4
    assert str(raised.value.hint).endswith(", ...") is more


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("3fa9c2", "did you mean {a}?"),
        ("3fa9cl", "did you mean {a}?"),
        ("20261121t083210z-tun-l4-beef00", "did you mean {active}?"),
        ("bench", "last:bench"),
    ],
)
def test_a_slip_names_the_nearest_and_a_job_its_last_run(
    store: FileStore, runs: dict[str, str], name: str, hint: str
) -> None:
    with pytest.raises(RunNotFound) as raised:
        store.resolve(name)
    assert hint.format(**runs) in str(raised.value.hint)


@pytest.mark.parametrize(
    "name", ["", "%", "_", "x' OR 1=1", "../..", "\x1b[31m", "last:nope", "zzzzzz", "last~x", "last~-1", "last~99999"]
)
def test_nothing_is_called_that(store: FileStore, runs: dict[str, str], name: str) -> None:
    with pytest.raises(RunNotFound):
        store.resolve(name)


def test_last_of_nothing_says_how_to_start(store: FileStore) -> None:
    with pytest.raises(RunNotFound) as raised:
        store.resolve("last")
    assert "fcctl run" in str(raised.value.hint)


def test_within_a_second_the_newest_is_the_last(store: FileStore) -> None:
    completed(store, make_id("zzz", at=NOVEMBER + 0.1), job="zzz", created=iso(NOVEMBER + 0.1))
    newer = completed(store, make_id("aaa", at=NOVEMBER + 0.5), job="aaa", created=iso(NOVEMBER + 0.5))
    assert store.resolve("last") == newer
    begun = make_id("aa0", at=NOVEMBER + 0.9)
    begin(store, begun).release()
    assert store.resolve("last") == begun
