"""Kills a search with SIGKILL at every line of its journal, and within each, and lets the next process go on.

``python killed_study.py FOLDER STRATEGY`` prints what it found as JSON. One process forks all others, so that Optuna is
imported once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.spec import Spec
from fcctl_tune.search.storage import Journal
from fcctl_tune.search.study import Study

SPEC = Spec.from_dict(
    {
        "tune": "killed",
        "parameters": {"TILE": [16, 32, 64], "FAST": [False, True]},
        "serve": "none",
        "trials": 4,
    }
)


def outcome(number: int, params: dict[str, object], source: str) -> TrialRecord:
    if number == 2:
        return TrialRecord(number, params, "crashed", "signal 11", source=source)
    value = 1 + float(params["TILE"]) / 64 - 0.3 * bool(params["FAST"])
    return TrialRecord(number, params, "complete", value=value, per_case={"default": 10 * value}, source=source)


def search(path: Path, strategy: str, note: Callable[[str, int], None]) -> list[dict[str, object]]:
    with Study(str(path), SPEC, strategy) as study:
        while (trial := study.ask()) is not None:
            note("asked", trial.number)
            study.tell(outcome(trial.number, trial.params, trial.source))
            note("told", trial.number)
        return [record.to_dict() for record in study.records()]


def child(path: Path, strategy: str, line: int, way: str) -> bool:
    """Search in a process that dies at ``line``; returns whether it did, rather than coming to its end before."""
    pid = os.fork()
    if pid == 0:
        write, left = Journal.append_logs, [line]

        def dying(journal: Journal, logs: list[dict[str, object]]) -> None:
            left[0] -= 1
            if left[0] == 0 and way == "within":
                text = json.dumps(logs[0]).encode()
                os.write(journal._fd, text[: len(text) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            write(journal, logs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        Journal.append_logs = dying  # type: ignore[method-assign]
        notes = os.open(path.with_suffix(".notes"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            search(path, strategy, lambda what, number: os.write(notes, f"{what} {number}\n".encode()) and None)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def main(folder: Path, strategy: str) -> None:
    Journal.sync = lambda journal: None  # type: ignore[method-assign]  # a kill leaves the kernel what it has
    whole = search(folder / "whole", strategy, lambda what, number: None)
    faults: list[str] = []
    kills = 0
    for way in ("within", "after"):
        line = 0
        while True:
            line += 1
            path = folder / f"{way}-{line}"
            if not child(path, strategy, line, way):
                break
            kills += 1
            notes = path.with_suffix(".notes")
            before = notes.read_text().split("\n")[:-1] if notes.exists() else []
            after: list[str] = []
            found = search(path, strategy, lambda what, number: after.append(f"{what} {number}"))  # noqa: B023
            if found != whole:
                faults.append(f"{way} {line}: other records")
            if again := {note for note in before if note.startswith("told")} & set(after):
                faults.append(f"{way} {line}: {again} before the kill and after it")
    print(json.dumps({"kills": kills, "faults": faults, "records": len(whole)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
