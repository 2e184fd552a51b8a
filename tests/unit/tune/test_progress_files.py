"""What a search writes as it goes: often enough to be followed, seldom enough to be no burden."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_tune.engine import progress_files
from fcctl_tune.engine.progress_files import ProgressFiles
from fcctl_tune.search.records import Summary, TrialRecord
from fcctl_tune.search.spec import Spec

SPEC = Spec.from_dict(
    {"tune": "t", "parameters": {"P": list(range(50))}, "serve": "true", "metric": {"unit": "us"}, "cases": ["a"]}
)


class Known:
    """A study that is told what is told to its books."""

    def __init__(self) -> None:
        self.spec, self.space = SPEC, SPEC.known_space
        self.found: list[TrialRecord] = []

    def records(self) -> list[TrialRecord]:
        return self.found

    def summary(self) -> Summary:
        return Summary(SPEC, "random", 0, "running", tuple(self.found))


@pytest.mark.parametrize(
    ("takes_s", "apart_s", "written"),
    [(0.01, 0.24, 6), (0.1, 0.24, 3), (10.0, 2.0, 2)],
    ids=["quick", "slow", "held up"],
)
def test_writing_takes_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, apart_s: float, written: int
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress_files, "time", SimpleNamespace(monotonic=lambda: clock.now))
    write, counts = progress_files.files.write_atomic, []

    def slowly(path: str, *rest: Any, **how: Any) -> None:
        write(path, *rest, **how)
        if path.endswith("tuning.json"):
            clock.now += takes_s
            counts.append(len(json.loads(Path(path).read_bytes())["trials"]))

    monkeypatch.setattr(progress_files.files, "write_atomic", slowly)
    study: Any = Known()
    about: dict[str, Any] = {}
    kept = ProgressFiles(study, str(tmp_path), str(tmp_path / "tuning.json"), lambda _: None, about)
    kept.account = lambda: about.update(wall_s=clock.now - 100.0)  # what a killed process leaves says so, too
    for number in range(50):  # in 12 s or 100
        study.found.append(TrialRecord(number, {"P": number}, "complete", value=1.0 + number))
        kept.told(study.found[-1])
        clock.now += apart_s
    assert counts[0] == 1
    assert len(counts) == written
    kept.write()  # at the end, whatever the time
    assert counts[-1] == 50
    assert json.loads((tmp_path / "topk.json").read_bytes())["elites"][0]["trial"] == 1
    assert json.loads((tmp_path / "tuning.json").read_bytes())["wall_s"] > 50 * apart_s - 0.001
