"""The folder that each command of a trial has for itself."""

from __future__ import annotations

import dataclasses
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fcctl_tune.search.records import Trial
from fcctl_tune.trial import folder, slot, tasks
from fcctl_tune.trial.folder import TrialDirectory
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import membership
from tests.unit.tune.test_tune_tasks import BENCH, candidate, trial_spec
from tests.unit.tune.test_tune_tasks import measured as measure_one

WRITE = "[ $P = 2 ] || echo right > out.bin"
MAKEFILE = """prog: prog.c config.h
\tsed "s/BLOCK/$(BLOCK)/" prog.c > prog
\techo built for $(BLOCK) > config.h
\tchmod +x prog
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Of a stranger: made in its own folder, checked by files of fixed names."""
    made = tmp_path / "source"
    made.mkdir()
    (made / "Makefile").write_text(MAKEFILE)
    (made / "prog.c").write_text("#!/bin/sh\necho BLOCK\n")
    (made / "config.h").write_text("none\n")
    return made


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def program(path: Path) -> None:
    path.write_bytes(folder.ELF)
    path.chmod(0o755)


def measured(made: TrialSpec, *some: Trial) -> list[slot.Timed]:
    for one in some:
        assert tasks.build(made, one).state == ""
    return [measure_one(made, one) for one in some]


def test_a_repository_that_builds_within_itself_is_tuned_and_stays_as_it_is(tmp_path: Path, source: Path) -> None:
    before = tree(source)
    bench = 'test "$(cat config.h)" = "built for $P"; echo "{\\"us\\": $(./prog)}" > bench.json'
    metric = {"reader": "metrics", "file": "bench.json", "value": "metrics.us"}
    check = 'test "$(./prog)" = "$P"; echo changed > config.h; rm prog.c'
    made = trial_spec(tmp_path, build="sleep 0.1; make BLOCK=$P", check=check, bench=bench, metric=metric)
    some = [candidate(made, p, number=p) for p in (1, 2, 3)]
    with ThreadPoolExecutor(3) as builders:
        assert [built.state for built in builders.map(lambda one: tasks.build(made, one), some)] == ["", "", ""]
    assert [timed.per_case for timed in measured(made, *some)] == [{"a": p, "b": p} for p in (1.0, 2.0, 3.0)]
    assert tree(source) == before
    assert not list(Path(made.folder).rglob("*.room"))


#: A source with links, a closed folder of the search's own, and what commands do there: the states of P = 1, 2, 3.
COMMANDS: dict[str, tuple[dict[str, str], list[str]]] = {
    "a program that writes nothing is not judged by what another wrote": (
        {"check": f"{WRITE}; grep -q right out.bin", "bench": f"{WRITE}; {BENCH}"}, ["", "wrong", ""],
    ),
    "folders of the search itself are not there": ({"check": "test ! -e tuned; test -e prog.c"}, [""]),
    "links of the source lead within the trial's directory": (
        {
            "build": "echo $P > config.h; ln -s ../prog.c inc/p.c",
            "check": "[ $P = 2 ] || echo right > out/o; grep -q right out/o; [ $(cat inc/config.h) = $P ]; cat inc/p.c",
        },
        ["", "wrong", ""],
    ),
    "a script that looks beside itself finds what its trial built": (
        {"build": "echo echo $P > kern.sh", "check": "[ $(./bench.sh) = $P ]"}, ["", "", ""],
    ),
    "a build finds its own place again, as an RPATH names it": (
        {
            "build": "mkdir -p lib; pwd > lib/place; echo 'found' > lib/it",
            "check": 'test "$(pwd)" = "$(cat lib/place)"; cat "$(cat lib/place)/lib/it"',
        },
        [""],
    ),
    "a file that a build moved": ({"build": "mv prog.c other.c", "check": "test -f other.c"}, [""]),
    "a file that a build replaced by a folder": (
        {"build": "rm prog.c; mkdir prog.c; touch prog.c/x", "check": "test -f prog.c/x"}, [""],
    ),
    "folders that a command closed do not stay": ({"check": "mkdir -p a/b; touch a/b/c; chmod 0 a/b a"}, ["", ""]),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "states"), COMMANDS.values(), ids=COMMANDS)
def test_commands_in_their_directories(tmp_path: Path, source: Path, spec: dict[str, Any], states: list[str]) -> None:
    for folder_name in ("_out", "inc", "tuned"):
        (source / folder_name).mkdir()
    (source / "tuned" / "journal.log").touch()
    (source / "out").symlink_to("_out")
    (source / "inc" / "config.h").symlink_to("../config.h")
    (source / "kern.sh").write_text("echo 100")
    (source / "bench.sh").write_text('#!/bin/sh\n. "$(dirname "$(realpath "$0")")/kern.sh"\n')
    (source / "bench.sh").chmod(0o755)
    made = dataclasses.replace(trial_spec(tmp_path, **spec), hidden=(str(source / "tuned"), ""))
    some = [candidate(made, p, number=p - 1) for p in range(1, len(states) + 1)]
    assert [timed.state for timed in measured(made, *some)] == states
    assert not list(Path(made.folder).rglob("*.room"))


@pytest.mark.parametrize(
    ("check", "states"),
    [
        ("[ $P = 2 ] || echo right > out.bin; cmp out.bin data/golden.bin", ["", "wrong", ""]),
        ("[ $P$TUNE_CASE = 2b ] || echo right > out.bin; grep right out.bin", ["", "wrong", ""]),
        ("sed -i s/none/$P/ config.h; grep -q $P config.h; echo $P > out.bin", ["", "", ""]),  # an input, edited
        ("echo $P > out.bin; echo $P > prog.c; rm config.h", ["", "", ""]),
    ],
)
def test_a_program_is_not_judged_by_what_was_in_the_source(
    tmp_path: Path, source: Path, check: str, states: list[str]
) -> None:
    """What the default's check overwrites there, the check of another must overwrite too, case by case."""
    (source / "data").mkdir()
    for name in ("out.bin", "data/golden.bin"):
        (source / name).write_text("right\n")
    made = trial_spec(tmp_path, check=check)
    some = [candidate(made, p, number=p - 1) for p in (1, 2, 3)]
    for _ in range(2):
        found = measured(made, *some)
        assert [timed.state for timed in found] == states
    if "wrong" in states:
        assert "the check left out.bin as it is in the source" in found[1].reason
    assert (source / "out.bin").read_text() == "right\n"


@pytest.mark.parametrize("call", ["mkdir", "rename"])
def test_a_full_disk_is_no_fault_of_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    made, real = trial_spec(tmp_path, build="echo x > left"), getattr(os, call)

    def full(path: str, *more: Any) -> None:
        if path.endswith(".room"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        real(path, *more)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        tasks.build(made, candidate(made))


def test_what_a_killed_worker_left_goes_when_the_next_search_begins(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for left in (work / "builds" / "ab.room", work / "workers" / "ab"):
        left.mkdir(parents=True)
        (left / "x").write_text("x")
    os.close(membership.claim(str(work)))
    assert sorted(path.name for path in work.rglob("*")) == [".gitignore", "builds", "lock", "logs", "workers"]
    with membership.for_workers(str(work)) as made:
        assert os.stat(made).st_mode & 0o777 == 0o700
    assert not os.path.exists(made)


def test_what_a_build_left_and_cannot_be_kept_is_its_fault(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, build='rm -r "$PWD"')
    built = tasks.build(made, candidate(made))
    assert (built.state, "cannot be kept" in built.reason) == ("build_failed", True)


def test_small_data_is_copied_and_what_is_large_a_program_or_hidden_is_linked(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "COPIED_BYTES", 1000)
    (source / "large").write_bytes(bytes(1001))
    program(source / "prog")
    (source / ".venv").mkdir()
    (source / "sub").mkdir()
    (source / "sub" / "a.h").touch()
    os.utime(source / "sub" / "a.h", ns=(10**18, 10**18))
    (source / "sub" / "up").symlink_to("../prog.c")
    (source / "sub" / "nowhere").symlink_to("nothing")
    work = source / ".work"
    work.mkdir()
    with TrialDirectory(str(work / "out"), str(source), {str(work)}) as made:
        here = Path(made.path)
        linked = sorted(str(p.relative_to(here)) for p in here.rglob("*") if p.is_symlink())
        assert linked == [".venv", "sub/nowhere", "sub/up"]
        shared = sorted(str(p.relative_to(here)) for p in here.rglob("*") if p.is_file() and p.stat().st_nlink > 1)
        assert shared == ["large", "prog"]
        assert (here / "sub" / "up").read_text() == (source / "prog.c").read_text()
        assert (here / "sub" / "a.h").stat().st_mtime_ns == 10**18
        assert not (here / ".work").exists()
        assert made.rewritten() == []
        (here / "sub" / "a.h").write_text("x")
        (here / "large").unlink()
        assert sorted(made.rewritten()) == ["large", "sub/a.h"]
    assert not here.exists()


@pytest.mark.parametrize("name", ["large.bin", "prog"])
@pytest.mark.parametrize("code", [0, 7])
def test_what_is_shared_is_not_to_be_changed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """Where it is, others would be judged by what one wrote."""
    monkeypatch.setattr(folder, "COPIED_IN_ALL", 5000)
    (source / "large.bin").write_bytes(bytes(6000))
    program(source / "prog")
    check = f"[ $P != 2 ] || {{ echo >> {name}; exit {code}; }}"
    made = trial_spec(tmp_path, check=check, bench=f"[ $P != 3 ] || rm {name}; {BENCH}")
    first, second, third = measured(made, *(candidate(made, p, number=p - 1) for p in (1, 2, 3)))
    assert (first.state, second.state, third.state) == ("", "wrong", "")
    assert second.reason.startswith(f"a: the command changed {name}, which all trials share")
    assert second.reason.endswith("; exit code 7") is (code == 7)


def test_of_a_large_tree_the_depths_are_linked_as_they_are(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MOST_ENTRIES", 12)
    for deep in ("lib/vendor/inc", "csrc"):
        (source / deep).mkdir(parents=True)
        for number in range(4):
            (source / deep / f"{number}.h").touch()
    with TrialDirectory(str(tmp_path / "out"), str(source)) as made:
        here = Path(made.path)
        assert (here / "lib" / "vendor" / "inc").is_symlink()
        assert (here / "lib" / "vendor" / "inc" / "3.h").is_file()
        assert not (here / "csrc").is_symlink()


def test_what_serves_and_its_builds_are_in_the_source_itself(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, build="pwd > $TUNE_OUT/where", check=None, bench=None, metric=None, serve="true")
    one = candidate(made)
    assert tasks.build(made, one).state == ""
    assert (Path(made.out(one.environment)) / "where").read_text().strip() == made.cwd
    assert [entry.name for entry in (Path(made.folder) / "builds").iterdir() if entry.is_dir()] == [
        Path(made.out(one.environment)).name
    ]


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial_spec(tmp_path)
    one = candidate(made)
    tasks.build(made, one)
    kept = Path(folder.beside(made.out(one.environment)).room)
    kept.mkdir()

    def refused(path: str) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(folder, "remove_tree", refused)
    timed = measure_one(made, one)
    assert timed.state == "wrong"
    assert "its folder cannot be created: " in timed.reason
    assert "Permission denied" in timed.reason
