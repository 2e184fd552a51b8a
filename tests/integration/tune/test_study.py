"""A search on disk: Optuna's journal, one process at a time, whole after any kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from fcctl_tune.errors import StudyLocked, StudyMismatch, TuneError
from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.spec import Spec
from fcctl_tune.search.study import Study

ROOT = Path(__file__).resolve().parents[3]
ENTRY = {
    "tune": "probe",
    "parameters": {"A": {"values": [1, 2, 4], "default": 2}, "B": [False, True], "C": ["x", "y"]},
    "serve": "none",
    "trials": 8,
}
SPEC = Spec.from_dict(ENTRY)


def told(study: Study, state: str = "complete") -> TrialRecord:
    trial = study.ask()
    value = float(trial.params["A"]) if state in ("complete", "pruned") else None
    record = TrialRecord(trial.number, trial.params, state, "why", value, source=trial.source)
    study.tell(record)
    return record


@pytest.mark.timeout(1000)
def test_a_search_killed_anywhere_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """SIGKILL within and after every line of the journal: the same records, nothing told twice."""
    path = os.pathsep.join([str(ROOT / "remote"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/killed_study.py"), str(tmp_path), "evolution"],
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["records"] == 4
    assert found["kills"] > 4 * 3 * 2  # several lines for each trial


def test_every_state_is_kept_and_optuna_can_read_it(tmp_path: Path) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    path = str(tmp_path / "deep" / "journal.log")
    with Study(path, SPEC, "random") as study:
        before = [told(study, state) for state in ("complete", "pruned", "wrong", "lost", "hung")]
        assert study.records() == before
    with Study(path, SPEC, "random") as study:
        assert study.records() == before
    read = optuna.load_study(study_name="fcctl", storage=optuna.storages.JournalStorage(JournalFileBackend(path)))
    assert [t.params for t in read.trials] == [r.params for r in before]
    assert [t.state.name for t in read.trials] == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "FAIL"]
    assert read.best_value == before[0].value


def test_what_was_under_way_is_asked_for_again(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.log")
    with Study(path, SPEC) as study:
        asked = [study.ask() for _ in range(4)]
        study.tell(TrialRecord(2, asked[2].params, "hung", "60 s", source=asked[2].source))  # type: ignore[union-attr]
    with Study(path, SPEC) as study:
        assert [study.ask() for _ in range(3)] == [asked[0], asked[1], asked[3]]
        new = study.ask()
    assert new.number == 4
    assert new.params not in [trial.params for trial in asked if trial]


def test_the_end_is_the_budget_or_the_space(tmp_path: Path) -> None:
    with Study(str(tmp_path / "a"), SPEC) as study:
        assert study.strategy == "evolution"
        while study.ask() is not None:
            assert study.ended == "running"
        assert (study.ended, len(study._asked)) == ("budget", 8)
    longer = Spec.from_dict({**ENTRY, "trials": 13})
    with Study(str(tmp_path / "a"), longer, "evolution") as study:  # more trials may be added to a search
        while study.ask() is not None:
            pass
        assert (study.ended, len(study._asked)) == ("exhausted", 12)
    with Study(str(tmp_path / "b"), longer) as study:
        assert study.strategy == "exhaustive"


def test_a_trial_is_told_once_and_as_it_was_asked(tmp_path: Path) -> None:
    with Study(str(tmp_path / "journal.log"), SPEC) as study:
        record = told(study)
        with pytest.raises(TuneError, match="trial 0 already has a result"):
            study.tell(record)
        with pytest.raises(TuneError, match="trial 7 was not requested"):
            study.tell(TrialRecord(7, record.params, "hung"))
        trial = study.ask()
        assert trial is not None
        with pytest.raises(TuneError, match="was not requested"):
            study.tell(TrialRecord(1, record.params, "hung"))


def test_another_search_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.log")
    Study(path, SPEC, "random", 1).close()
    Study(path, Spec.from_dict({**ENTRY, "title": "another", "elites": 2}), "random", 1).close()
    for spec, strategy, seed, differs in (
        (SPEC, "random", 2, "seed"),
        (SPEC, "evolution", 1, "strategy"),
        (Spec.from_dict({**ENTRY, "serve": "other"}), "random", 1, "spec"),
    ):
        with pytest.raises(StudyMismatch, match=f"{differs} differs"):
            Study(path, spec, strategy, seed)


def test_one_process_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.log")
    with Study(path, SPEC), pytest.raises(StudyLocked, match=f"process {os.getpid()}"):
        Study(path, SPEC)
    code = f"import fcntl, sys\nf = open({path + '.lock'!r}, 'a')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StudyLocked):
            Study(path, SPEC)
        holder.send_signal(signal.SIGKILL)
    Study(path, SPEC).close()


def test_a_torn_end_is_taken_off_and_a_torn_middle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    with Study(str(path), SPEC) as study:
        before = [told(study), told(study)]
    whole = path.read_bytes()
    for torn in (b'{"op_code": 4', b"\0" * 100, b'{"op_code": 4\n\0\0\n'):
        path.write_bytes(whole + torn)
        with Study(str(path), SPEC) as study:
            assert study.records() == before
        assert path.read_bytes() == whole
    lines = whole.split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], lines[3][:10], *lines[4:]]))
    with pytest.raises(TuneError, match="damaged at line 4"):
        Study(str(path), SPEC)
    path.write_bytes(b'{"hello": 1}\n')
    with pytest.raises(TuneError, match="is not a search's journal"):
        Study(str(path), SPEC)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fcctl_remote.base import files

    path = str(tmp_path / "journal.log")
    with Study(path, SPEC) as study:
        before = told(study)
        trial = study.ask()
        assert trial is not None

        def full(fd: int, data: bytes) -> None:
            os.write(fd, data[:20])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(files, "write_all", full)
            with pytest.raises(TuneError, match="No space left"):
                study.tell(TrialRecord(1, trial.params, "hung"))
        study.tell(TrialRecord(1, trial.params, "crashed"))
    with Study(path, SPEC) as study:
        assert [r.state for r in study.records()] == [before.state, "crashed"]


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        (1, ("user_attr", "fcctl"), 5),
        (2, ("system_attrs", "fixed_params"), {}),
        (2, ("system_attrs", "fixed_params", "A"), 3),
        (2, ("params", "A"), 10**6),
        (3, ("user_attr", "record"), [1]),
        (3, ("user_attr", "record", "number"), 5),
        (3, ("user_attr", "record", "params", "A"), 4),
        (3, ("user_attr", "record", "value"), float("nan")),
        (3, ("user_attr", "record", "value"), []),
    ],
)
def test_a_journal_that_makes_no_sense_is_told_as_such(
    tmp_path: Path, line: int, path: tuple[str, ...], value: Any
) -> None:
    journal = tmp_path / "journal.log"
    with Study(str(journal), SPEC) as study:
        told(study)
    lines = [json.loads(text) for text in journal.read_text().splitlines()]
    part = lines[line]
    for key in path[:-1]:
        part = part[key]
    assert path[-1] in part
    part[path[-1]] = value
    journal.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(TuneError, match="is not a search's journal"):
        Study(str(journal), SPEC)
    journal.unlink()
    Study(str(journal), SPEC).close()  # nobody holds its lock


def test_a_trial_that_somebody_else_put_in_is_none_of_its_own(tmp_path: Path) -> None:
    import optuna

    from fcctl_tune.search.storage import Journal

    path = str(tmp_path / "journal.log")
    with Study(path, SPEC) as study:
        told(study)
    journal = Journal(path)
    theirs = optuna.load_study(study_name="fcctl", storage=optuna.storages.JournalStorage(journal))
    theirs.enqueue_trial(dict(SPEC.known_space.default))
    journal.close()
    with pytest.raises(TuneError, match="trial 1 was added by another program"):
        Study(path, SPEC)
