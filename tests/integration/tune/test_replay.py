"""Recorded landscapes: written from a search that tried everything, replayed without a GPU; evolution wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import landscape, search
from benchmarks.landscape import Landscape
from benchmarks.search import LANDSCAPES
from fcctl_tune.search.records import Trial, TrialRecord
from fcctl_tune.search.space import Space
from fcctl_tune.search.spec import Spec

ENTRY = {
    "tune": "small",
    "parameters": {"A": {"values": [1, 2, 4], "default": 2}, "B": [1, 2]},
    "constraints": ["A * B <= 4"],
    "serve": "none",
    "cases": ["x", "y"],
    "trials": 100,
}


def outcome(trial: Trial) -> TrialRecord:
    if trial.params["A"] == 4:
        return TrialRecord(trial.number, trial.params, "crashed", "signal 11")
    a, b = float(trial.params["A"]), float(trial.params["B"])
    return TrialRecord(trial.number, trial.params, "complete", value=a / 2, per_case={"x": a, "y": 10 * a * b})


def recorded() -> Landscape:
    space = Space.from_dict(ENTRY)
    records = [outcome(Trial(number, params)) for number, params in enumerate(space.all)]
    return Landscape.from_records(space, records, name="small", machine="none", date="2026-11-21", cases=("x", "y"))


def test_there_are_measured_landscapes_that_say_where_and_when() -> None:
    found = [Landscape.load(str(path)) for path in LANDSCAPES]
    assert len(found) >= 2
    for one in found:
        assert one.origin == "measured"
        assert one.machine
        assert one.date >= "2026-11-21"
        assert len(one) > 500
        assert {o.state for o in one.outcomes.values()} >= {"complete"}


@pytest.mark.full
@pytest.mark.timeout(1800)  # ten seconds of processor time, on a computer that may be busy
def test_evolution_beats_random_search_at_equal_budget() -> None:
    """On a GPU's landscape, which had no part in shaping the search; benchmarks/search.py does it on all."""
    measured = next(path for path in LANDSCAPES if path.stem == "flagship-h200")
    found = search.contest(Landscape.load(str(measured)), 64, range(10))
    assert found.wins >= 8
    assert found.behind(0) < found.behind(1) / 2


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", LANDSCAPES, ids=lambda path: path.stem)
def test_a_fast_run_of_32_trials_gains_by_it_too(path: Path) -> None:
    found = search.contest(Landscape.load(str(path)), 32, range(10))
    assert found.wins > len(found.pairs) / 2
    assert found.behind(0) < found.behind(1)


def test_a_landscape_is_recorded_from_a_study_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    from fcctl_tune.search.study import Study

    spec, journal, out = tmp_path / "spec.json", tmp_path / "journal.log", tmp_path / "small.json"
    spec.write_text(json.dumps(ENTRY))
    arguments = [str(spec), "--storage", str(journal), "--machine", "none", "--date", "2026-11-21", "--out", str(out)]
    assert landscape.main(arguments) == 2
    assert "there is no study" in capsys.readouterr().err
    with Study(str(journal), Spec.from_dict(ENTRY)) as study:
        assert study.strategy == "exhaustive"
        first = study.ask()
        assert first is not None
        study.tell(outcome(first))
    assert landscape.main(arguments) == 2
    assert "1 of 5 configurations were tried" in capsys.readouterr().err
    with Study(str(journal), Spec.from_dict(ENTRY)) as study:
        while (trial := study.ask()) is not None:
            study.tell(outcome(trial))
    assert landscape.main(arguments) == 0
    assert capsys.readouterr().out == f"{out}: 5 configurations, 4 of them work\n"
    assert Landscape.load(str(out)).to_dict() == recorded().to_dict()
    assert search.main([str(out), "--budget", "4", "--ahead", "0", "--seeds", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget"] == 4
