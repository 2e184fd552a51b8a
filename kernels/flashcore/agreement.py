"""``python -m flashcore.agreement RUN RUN``: do two machines come to the same verdicts? RUNs are published ones.

A comparison is of a variant in one configuration with a backend of PyTorch, at a shape, in a mode, and of one library:
its ``content`` is the same, or, where an older run does not tell that, its kernels' registers are. Its verdict is by
the interval of the ratio: ``faster`` if all of it is below 1, ``slower`` if all is above, else ``undecided``. Two runs
*contradict* each other where one says faster and the other slower; where only one of them decides, they do not agree
either, but nothing is wrong with them. Exit code 1 if any contradict.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashcore.errors import FlashcoreError, UsageError


@dataclass(frozen=True, order=True)
class Subject:
    variant: str
    settings: tuple[tuple[str, int], ...]
    shape: str
    mode: str
    rival: str

    def __str__(self) -> str:
        settings = "+".join(f"{name}={value}" for name, value in self.settings)
        return f"{self.variant} ({settings}) against {self.rival} at {self.shape}, {self.mode}"


@dataclass(frozen=True)
class Library:
    """What was timed, as far as the run's ``build`` document tells."""

    content: str = ""
    registers: tuple[tuple[str, int], ...] = ()  # of its kernels, by architecture

    @classmethod
    def of(cls, build: dict[str, Any]) -> Library:
        kernels = build.get("kernels") or ()
        return cls(str(build.get("content") or ""), tuple(sorted((k["arch"], int(k["registers"])) for k in kernels)))

    def may_be(self, other: Library) -> bool:
        if self.content and other.content:
            return self.content == other.content
        return not self.registers or not other.registers or self.registers == other.registers


@dataclass(frozen=True)
class Finding:
    ratio: float
    low: float
    high: float
    library: Library = Library()

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def verdict(self) -> str:
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "undecided"


@dataclass(frozen=True)
class Agreement:
    """What two runs say of the same comparisons."""

    common: dict[Subject, tuple[Finding, Finding]]

    def _having(self, *verdicts: set[str]) -> list[Subject]:
        return [s for s, (a, b) in self.common.items() if {a.verdict, b.verdict} in verdicts]

    @property
    def agreeing(self) -> list[Subject]:
        return self._having({"faster"}, {"slower"}, {"undecided"})

    @property
    def contradicting(self) -> list[Subject]:
        return self._having({"faster", "slower"})

    @property
    def by_one_only(self) -> list[Subject]:
        return self._having({"faster", "undecided"}, {"slower", "undecided"})

    @property
    def median_difference(self) -> float | None:
        """Of the two ratios, as a share: what another machine changes."""
        logs = [abs(math.log(a.ratio / b.ratio)) for a, b in self.common.values()]
        return math.expm1(statistics.median(logs)) if logs else None


def findings(documents: Sequence[dict[str, Any]]) -> dict[Subject, Finding]:
    """All comparisons with PyTorch in a run's ``benchmark`` documents; its ``build`` documents tell what was timed."""
    libraries = {d.get("label"): Library.of(d) for d in documents if d.get("kind") == "build"}
    found = {}
    for document in documents:
        if document.get("kind") != "benchmark":
            continue
        used = {row.get("name"): row.get("configuration") for row in document.get("benchmarks", [])}
        for c in document.get("comparisons", []):
            parts = str(c.get("against")).split("/")
            if c.get("null") or len(parts) < 2 or not parts[1].startswith("sdpa"):
                continue
            configuration = used.get(c.get("benchmark")) or document.get("configuration") or {}
            settings = tuple(sorted((str(k), int(v)) for k, v in configuration.items()))
            subject = Subject(str(document.get("variant")), settings, parts[0], str(c.get("mode")), parts[1])
            library = libraries.get(document.get("label"), Library())
            found[subject] = Finding(float(c["ratio"]), float(c["ci_low"]), float(c["ci_high"]), library)
    return found


def compare(first: dict[Subject, Finding], second: dict[Subject, Finding]) -> Agreement:
    common = {s: (first[s], second[s]) for s in sorted(first.keys() & second.keys())}
    return Agreement({s: (a, b) for s, (a, b) in common.items() if a.library.may_be(b.library)})


def load(folder: Path) -> dict[Subject, Finding]:
    """The findings of a published run.

    Raises:
        UsageError: ``folder`` contains no benchmarks.
    """
    documents = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.json"))]
    found = findings([d for d in documents if isinstance(d, dict)])
    if not found:
        raise UsageError(f"{folder} contains no benchmarks", hint="name two folders of results/reference/GPU")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.agreement", description="Compare two runs' verdicts.")
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="a folder such as results/reference/h200/ID")
    options = parser.parse_args(argv)
    try:
        agreement = compare(*(load(run) for run in options.runs))
    except (FlashcoreError, ValueError, LookupError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    for name, subjects in (("contradict", agreement.contradicting), ("decided by one run only", agreement.by_one_only)):
        for subject in subjects:
            a, b = agreement.common[subject]
            print(f"{name}: {subject}: {a}, {b}")
    print(f"{len(agreement.common)} comparisons in common: {len(agreement.agreeing)} agree, "
          f"{len(agreement.by_one_only)} decided by one only, {len(agreement.contradicting)} contradict")  # fmt: skip
    return 1 if agreement.contradicting else 0


if __name__ == "__main__":
    sys.exit(main())
