"""A recorded landscape: what became of every configuration of a space, so that searches can be compared without a GPU.

Written from a search that tried them all, read by ``benchmarks/search.py``::

    python -m benchmarks.landscape SPEC.json --storage JOURNAL --machine "NVIDIA L4, driver 570" --out NAME.json

One row per configuration::

    {"kind": "landscape", "schema_version": 1, "name": "matmul", "origin": "measured", "machine": "..", "date": "..",
     "parameters": {"MR": {"values": [1, 2], "default": 2}}, "cases": ["default"], "unit": "us", "direction": "min",
     "columns": ["MR", "state", "time:default", "reason"], "rows": [[1, "complete", 93.2, ""], ..]}
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fcctl_remote.base import files
from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import INVALID, Trial, TrialRecord, objective
from fcctl_tune.search.space import Params, Space
from fcctl_tune.search.spec import Spec
from fcctl_tune.search.study import NAME, Study

SCHEMA_VERSION = 1
ORIGINS = ("measured", "synthetic")


@dataclass(frozen=True)
class Outcome:
    state: str  # complete, or one of records.INVALID
    times: tuple[float, ...] = ()  # per case, in the landscape's unit
    reason: str = ""


@dataclass(frozen=True)
class Landscape:
    name: str
    space: Space  # listed: every configuration that has a row
    outcomes: Mapping[str, Outcome]  # by Space.key
    origin: str
    machine: str
    date: str
    title: str = ""
    cases: tuple[str, ...] = ("default",)
    unit: str = "us"
    direction: str = "min"

    def __len__(self) -> int:
        return len(self.outcomes)

    def try_out(self, trial: Trial) -> TrialRecord:
        """What the trial would have come to."""
        outcome = self.outcomes[self.space.key(trial.params)]
        times = dict(zip(self.cases, outcome.times))  # noqa: B905 (Python 3.9)
        value = objective(times, self._reference, self.direction) if outcome.state == "complete" else None
        return TrialRecord(
            trial.number, trial.params, outcome.state, outcome.reason, value, per_case=times, source=trial.source
        )

    @cached_property
    def _reference(self) -> dict[str, float]:
        default = self.outcomes[self.space.key(self.space.default)]
        return dict(zip(self.cases, default.times))  # noqa: B905

    @cached_property
    def values(self) -> list[float]:
        """Of all that work, the best first."""
        tried = (self.try_out(Trial(0, params)) for params in self.space.all)
        return sorted(r.value for r in tried if r.value is not None)

    @classmethod
    def from_records(
        cls, space: Space, records: Sequence[TrialRecord], *, name: str, machine: str, date: str, **more: Any
    ) -> Landscape:
        """The landscape that a search over all of ``space`` saw. A lost trial leaves its configuration out. Raises
        TuneError: the default was not timed."""
        cases: tuple[str, ...] = tuple(more.pop("cases", ("default",)))
        outcomes: dict[str, Outcome] = {}
        listed = []
        for r in sorted(records, key=lambda r: r.number):
            if r.state != "complete" and r.state not in INVALID:
                continue
            times = tuple(r.per_case[case] for case in cases) if r.state == "complete" else ()
            outcomes[space.key(r.params)] = Outcome(r.state, times, r.reason)
            listed.append(tuple(r.params[n] for n in space.names))
        first = tuple(space.default[n] for n in space.names)
        if outcomes.get(space.key(space.default), Outcome("lost")).state != "complete":
            raise TuneError(f"{name}: the default configuration was not timed")
        known = Space(space.parameters, (), tuple(listed), first)
        return cls(name, known, outcomes, machine=machine, date=date, cases=cases, **{"origin": "measured", **more})

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`loads` makes the same landscape of, rounded to five digits."""
        columns = [*self.space.names, "state", *(f"time:{c}" for c in self.cases), "reason"]
        return {
            "kind": "landscape", "schema_version": SCHEMA_VERSION, "name": self.name, "title": self.title,
            "origin": self.origin, "machine": self.machine, "date": self.date,
            "parameters": {p.name: p.as_dict() for p in self.space.parameters}, "default": self.space.default,
            "cases": list(self.cases), "unit": self.unit, "direction": self.direction, "columns": columns,
            "rows": [self._row(params) for params in self.space.all],
        }  # fmt: skip

    def dumps(self) -> str:
        """As JSON, a line for each configuration."""
        entry = self.to_dict()
        lines = [json.dumps(row) for row in entry.pop("rows")]
        return json.dumps(entry)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"

    def _row(self, params: Params) -> list[Any]:
        outcome = self.outcomes[self.space.key(params)]
        times: list[Any] = [float(f"{t:.5g}") for t in outcome.times] or [None] * len(self.cases)
        return [*(params[n] for n in self.space.names), outcome.state, *times, outcome.reason[:80]]

    @classmethod
    def load(cls, path: str) -> Landscape:
        """Raises: TuneError."""
        try:
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            raise TuneError(f"{path} cannot be read: {error}") from None
        try:
            return cls.loads(text)
        except TuneError as error:
            raise TuneError(f"{path}: {error.message}", "record one: python -m benchmarks.landscape") from None

    @classmethod
    def loads(cls, text: str) -> Landscape:
        """Raises: TuneError, when it is no such file."""
        try:
            return cls._parsed(json.loads(text))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise TuneError(f"this is no recorded landscape: {type(error).__name__}: {error}") from None

    @classmethod
    def _parsed(cls, entry: Mapping[str, Any]) -> Landscape:
        if entry["kind"] != "landscape" or entry["schema_version"] != SCHEMA_VERSION:
            raise ValueError("kind or schema_version differ")
        if entry["origin"] not in ORIGINS:
            raise ValueError(f"origin is none of {', '.join(ORIGINS)}")
        names, cases = list(entry["parameters"]), tuple(entry["cases"])
        width = len(names)
        listed = [dict(zip(names, row)) for row in entry["rows"]]  # noqa: B905
        space = Space.from_dict(
            {"parameters": entry["parameters"], "configurations": listed, "default": entry["default"]}
        )
        outcomes = {}
        for params, row in zip(listed, entry["rows"]):  # noqa: B905
            state, times, reason = row[width], row[width + 1 : width + 1 + len(cases)], row[width + 1 + len(cases)]
            outcomes[space.key(params)] = Outcome(state, tuple(times) if state == "complete" else (), reason)
        more = {f.name: entry[f.name] for f in dataclasses.fields(cls) if f.name in _TOLD}
        return cls(space=space, outcomes=outcomes, cases=cases, **more)


_TOLD = ("name", "origin", "machine", "date", "title", "unit", "direction")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landscape", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("spec", help="the spec as JSON, with the space that was searched")
    parser.add_argument("--storage", required=True, metavar="JOURNAL", help="the search's journal")
    parser.add_argument("--machine", required=True, help="what it was measured on")
    parser.add_argument("--date", required=True, help="when, as 2026-11-21")
    parser.add_argument("--out", required=True, metavar="FILE", help="the landscape to write")
    options = parser.parse_args(argv)
    try:
        landscape = recorded(options.spec, options.storage, options.machine, options.date)
        files.write_atomic(options.out, landscape.dumps().encode("utf-8"))
    except (OSError, ValueError, TuneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(landscape)} configurations, {len(landscape.values)} of them work")
    return 0


def recorded(spec_path: str, storage: str, machine: str, date: str) -> Landscape:
    """The landscape that the search in the journal ``storage`` saw. Raises OSError, ValueError: the spec cannot be
    read; TuneError: the study is of another search, or did not try every configuration."""
    with open(spec_path, encoding="utf-8") as stream:
        spec = Spec.from_dict(json.load(stream))
    with Study(storage, spec, *_begun_with(storage)) as study:
        records = study.records()
    size = spec.known_space.size
    if size is None or len(records) < size:
        raise TuneError(
            f"{len(records)} of {size or 'too many'} configurations were tried",
            "tune with --strategy exhaustive and as many --trials",
        )
    return Landscape.from_records(
        spec.known_space, records, name=spec.tune, title=spec.title, machine=machine, date=date, cases=spec.cases,
        unit=spec.metric.unit, direction=spec.metric.direction,
    )  # fmt: skip


def _begun_with(storage: str) -> tuple[str, int]:
    """Strategy and seed of the search in a journal. Raises: TuneError."""
    try:
        with open(storage, encoding="utf-8") as stream:
            begun = [json.loads(line).get("user_attr", {}).get(NAME) for line in stream]
        return next((one["strategy"], one["seed"]) for one in begun if one)
    except (OSError, ValueError, LookupError, AttributeError, StopIteration):
        raise TuneError(f"there is no study {storage}") from None


if __name__ == "__main__":
    sys.exit(main())
