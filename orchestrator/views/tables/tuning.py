"""What a search found, as the end of ``fcctl tune`` and ``fcctl results show`` tell it; the report says more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.base.sanitize import clean
from orchestrator.results import tuning as tune_result
from orchestrator.results.tuning import Elite, TuneResult
from orchestrator.views.figures import duration
from orchestrator.views.report.tuning import changed, share, so_far, state_words
from orchestrator.views.table import MAX_ROWS, Table, mark, more

#: Reasons beyond these are the report's matter.
MAX_REASONS = 3
_MARKS = {"faster": "passed", "slower": "failed"}


def tuning(content: dict[str, Any]) -> Iterator[RenderableType]:
    """What was tried, the elites with the evidence for them, and why trials failed."""
    result = tune_result.read(content)
    if not (result.trials or result.elites or result.fault):
        return
    states = ", ".join(f"{count} {state_words(state)}" for state, count in result.states.items())
    facts = [
        f"{clean(result.name, 40)}: {result.trials} trials" + (f" ({states})" if states else ""),
        clean(result.gpu, 60),
        duration(result.wall_s) if result.wall_s is not None else "",
        "" if result.complete else "ended before its end",
    ]
    yield Text(" · ".join(fact for fact in facts if fact))
    if result.fault:
        yield Text(clean(result.fault, 400), "red")
    elif result.unmeasured is not None:
        yield Text(so_far(result.unmeasured, result), "yellow")
    elif result.best is None:
        yield Text("nothing stood the second measurement", "yellow")
    if result.elites:
        yield _elites(result)
        yield from more(len(result.elites))
        yield Text(f"times over the default's ({changed(result.default, {})}); below 1 is faster", "dim")
    for state, reason, count in result.reasons[:MAX_REASONS]:
        yield Text(f"{count} {state_words(state)}: {clean(reason, 200) or 'without a reason'}", "yellow")
    if rest := sum(count for _, _, count in result.reasons[MAX_REASONS:]):
        yield Text(f"... and {rest} more that failed, for other reasons: tune_log.csv", "dim")


def proven(content: Mapping[str, Any]) -> bool:
    """Whether some elite is faster than the default beyond doubt."""
    return any(elite.proven for elite in tune_result.read(content).elites)


def _elites(result: TuneResult) -> Table:
    held_out = any(elite.held_out for elite in result.elites)
    rows = Table("trial", "parameters", "searched", *(("held out",) if held_out else ()), "")
    for elite in result.elites[:MAX_ROWS]:
        measured = (elite.searched, elite.held_out) if held_out else (elite.searched,)
        rows.add_row(str(elite.trial), changed(elite.params, result.default), *map(share, measured), _verdict(elite))
    return rows


def _verdict(elite: Elite) -> Text:
    verdict = mark(_MARKS.get(elite.verdict, "warned"), elite.verdict)
    return verdict.append(f": {clean(elite.reason, 120)}") if elite.reason else verdict
