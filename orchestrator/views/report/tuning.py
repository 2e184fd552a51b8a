"""What a report says of a search: whether it beat its control, its elites with their evidence, why trials failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.base.sanitize import clean
from orchestrator.results import tuning as tune_result
from orchestrator.results.look import Shown
from orchestrator.results.tuning import Control, Elite, TuneResult
from orchestrator.views.live.run import duration
from orchestrator.views.tables.figures import microseconds
from orchestrator.views.tables.tuning import changed, share, so_far

#: Reasons and cases beyond these are a log's matter.
MAX_REASONS, MAX_CASES = 12, 4
CONTROL_HEADER = ("search", "trials", "best of the default's time, as searched", "as good as the control after")
ELITE_HEADER = ("trial", "parameters", "searched on", "held out", "verdict", "times")
REASON_HEADER = ("state", "trials", "reason")


@dataclass(frozen=True)
class Grid:
    """A table: its header, and rows of cells that are clean of control characters."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Tuned:
    """One search of a run."""

    run: str
    label: str
    machine: str
    result: TuneResult
    facts: tuple[tuple[str, str], ...]
    controls: Grid
    elites: Grid
    reasons: Grid

    @property
    def curves(self) -> tuple[Control, ...]:
        return (self.result.search, *self.result.controls)

    @property
    def verdict(self) -> str:
        """In a sentence."""
        best, leader = self.result.best, self.result.unmeasured
        if self.result.fault:
            return f"The search of {self.label} could not go on: {clean(self.result.fault, 400)}."
        if leader is not None:
            return f"The search of {self.label} was {so_far(leader, self.result)}."
        if best is None:
            return f"The search of {self.label} found nothing that stood the second measurement."
        ratio, where = best.held_out or best.searched, "held-out cases" if best.held_out else "its own cases"
        said = f"The best of {self.result.trials} trials of {self.label} takes {share(ratio)} of the default's time"
        return f"{said} on {where}: {best.verdict}."


def tuned(shown: Shown) -> Iterable[Tuned]:
    """Every search of a run."""
    for document in shown.documents.of("tuning"):
        result = tune_result.read(document.content)
        title = document.content.get("title")
        label = clean(f"{result.name} ({title})" if title else result.name, 100)
        yield Tuned(
            run=shown.record.run_id,
            label=label,
            machine=clean(result.gpu or "unknown machine", 60),
            result=result,
            facts=tuple(_facts(result)),
            controls=Grid(CONTROL_HEADER, tuple(_controls(result))),
            elites=Grid(ELITE_HEADER, tuple(_elite(elite, result) for elite in result.elites)),
            reasons=Grid(REASON_HEADER, tuple(_reasons(result))),
        )


def _facts(result: TuneResult) -> Iterable[tuple[str, str]]:
    states = ", ".join(f"{count} {clean(state, 20).replace('_', ' ')}" for state, count in result.states.items())
    busy, wall = result.effort.get("gpu_timed_share"), result.wall_s
    on = [clean(model, 60) for model in result.gpus]
    facts = (
        ("trials", ": ".join(filter(None, [f"{result.trials} of {result.budget}" if result.budget else "", states]))),
        ("configurations", "countless" if result.size is None else str(result.size)),
        ("cases", clean(", ".join(result.cases), 200)),
        ("timed on", ", ".join(on) + (" (figures of different ones do not compare)" if len(on) > 1 else "")),
        ("took", duration(wall) if wall is not None else ""),
        ("of which timing", f"{100 * busy:.0f} %" if busy is not None else ""),
        ("seed", str(result.seed) if result.seed is not None else ""),
        ("ended", "" if result.complete else "before its end"),
    )
    return [(name, value) for name, value in facts if value]


def _controls(result: TuneResult) -> Iterable[tuple[str, ...]]:
    for control in (result.search, *result.controls):
        best = control.best
        if not control.curve:
            continue
        yield (
            clean(control.strategy or "search", 20) + (" (control)" if control is not result.search else ""),
            str(len(control.curve)),
            "" if best is None else f"{best:.4f}",
            "" if control is not result.search else _matched(result),
        )


def _matched(result: TuneResult) -> str:
    """After how many trials the search was as good as each control was in the end."""
    said = []
    for control in result.controls:
        best = control.best
        curve = enumerate(result.search.curve, 1)
        at = next((n for n, v in curve if best is not None and v is not None and v <= best), None)
        said.append("never" if at is None else f"{at} trials")
    return ", ".join(said)


def _elite(elite: Elite, result: TuneResult) -> tuple[str, ...]:
    times = [
        f"{clean(c.case, 40)}{' (held out)' if c.held_out else ''} {microseconds(c.time)} {clean(result.unit, 8)}"
        for c in elite.cases[:MAX_CASES] if c.time is not None
    ]  # fmt: skip
    return (
        str(elite.trial),
        changed(elite.params, result.default),
        share(elite.searched),
        share(elite.held_out),
        elite.verdict + (f": {clean(elite.reason, 120)}" if elite.reason else ""),
        ", ".join(times) + (", ..." if len(elite.cases) > MAX_CASES else ""),
    )


def _reasons(result: TuneResult) -> Iterable[tuple[str, ...]]:
    for state, reason, count in result.reasons[:MAX_REASONS]:
        yield clean(state, 20).replace("_", " "), str(count), clean(reason, 160)
    more = sum(count for _, _, count in result.reasons[MAX_REASONS:])
    if more:
        yield "others", str(more), "see tune_log.csv"
