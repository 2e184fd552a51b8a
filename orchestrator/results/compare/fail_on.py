"""When a comparison fails: ``slower``, ``slower:3%``, ``inconclusive``, ``incomparable``, ``missing``, or ``none``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.base.errors import UsageError, did_you_mean
from orchestrator.results.compare.verdicts import Comparison

_CONDITION = re.compile(r"(slower)(?::\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?))?|(inconclusive|incomparable|missing)")
KINDS = ("slower", "slower:3%", "inconclusive", "incomparable", "missing", "none")


@dataclass(frozen=True)
class FailOn:
    """``share``: slower by at least so much, as the estimate says; the verdict says that it is slower at all."""

    kind: str
    share: float = 0.0


@dataclass(frozen=True)
class Failure:
    """One benchmark for which a condition holds, and what to say of it."""

    benchmark: str
    mode: str
    kind: str
    message: str


#: What fails a comparison of which nothing else is asked: whatever is slower, as the verdict has it.
BY_DEFAULT = (FailOn("slower"),)


def conditions(texts: Sequence[str]) -> tuple[FailOn, ...]:
    """All of ``--fail-on``; a lone ``none`` fails on nothing. Raises UsageError: one is not a valid condition."""
    if [text.strip().lower() for text in texts] == ["none"]:
        return ()
    return tuple(parse(text) for text in texts) or BY_DEFAULT


def parse(text: str) -> FailOn:
    """A condition as typed. Raises UsageError: it is none."""
    match = _CONDITION.fullmatch(text.strip().lower())
    if not match:
        hint = did_you_mean(text.partition(":")[0], KINDS)
        raise UsageError(
            f"--fail-on {text[:60]!r} is not a valid condition", hint=f"{hint}; for example --fail-on slower:3%"
        )
    if match[4]:
        return FailOn(match[4])
    share = float(match[2] or 0.0) / (100 if match[3] else 1)
    if match[2] and not match[3] and share >= 1:
        raise UsageError(
            f"--fail-on {text!r}: did you mean {share:g} times slower?",
            hint=f"write per cent with the sign %: slower:{match[2]}%",
        )
    return FailOn("slower", share)


def failures(comparison: Comparison, conditions: Iterable[FailOn]) -> list[Failure]:
    """What fails the comparison, the worst first."""
    failed = []
    for condition in conditions:
        if condition.kind == "missing":
            failed += [
                Failure(k.name, k.mode, "missing", "measured before, but not any more") for k in comparison.only_old
            ]
            continue
        for benchmark in comparison.benchmarks:
            if benchmark.verdict != condition.kind:
                continue
            ratio = benchmark.effect.ratio if benchmark.effect else 1.0
            if condition.kind == "slower" and ratio - 1 < condition.share:
                continue
            said = f"{100 * (ratio - 1):.1f} % slower" if condition.kind == "slower" else "; ".join(benchmark.reasons)
            failed.append(Failure(benchmark.name, benchmark.mode, condition.kind, said or condition.kind))
    return list(dict.fromkeys(failed))
