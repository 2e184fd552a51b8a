"""The power fails after every operation of every subject; what the disk may hold then is read by the real code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.power_cut.mutants import IN_WHOLE_RUNS, MUTANTS, Mutant
from tests.power_cut.play import Subject, play, record
from tests.power_cut.subjects import GROUPS, SUBJECTS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
def test_nothing_promised_is_lost(subject: type[Subject]) -> None:
    assert play(subject()).violations == []


def test_there_are_thousands_of_states_and_about_as_many_operations_as_documented(tmp_path: Path) -> None:
    page = (DOCS / "testing.md").read_text()
    rows = re.findall(r"^\|[^|]+\| (\d+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert len(rows) == len(GROUPS)
    assert f"All of {len(MUTANTS) + len(IN_WHOLE_RUNS)} planted bugs" in page
    states = 0
    for group, (operations, _) in zip(GROUPS, rows, strict=True):
        recorders = [record(subject(), tmp_path / subject.__name__) for subject in group]
        assert sum(recorder.operations for recorder in recorders) == pytest.approx(int(operations), rel=0.1)
        states += sum(len(recorder.cuts) for recorder in recorders)
    assert states >= 2000


@pytest.mark.full
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    assert any(play(subject()).violations for subject in mutant.subjects)
