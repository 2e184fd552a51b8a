"""What a search found, as the end of ``fcctl tune`` and ``fcctl results show`` tell it; the report says more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.results import tuning as tune_result
from orchestrator.results.timings import Ratio
from orchestrator.results.tuning import Elite, Leader, TuneResult, Value
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import MAX_ROWS, more, table, text
from orchestrator.views.tables.figures import mark

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

#: Reasons beyond these are the report's matter.
MAX_REASONS = 3
_MARKS = {"faster": "passed", "slower": "failed"}


def tuning(content: dict[str, Any]) -> Iterator[RenderableType]:
    """What was tried, the elites with the evidence for them, and why trials failed."""
    result = tune_result.read(content)
    if not (result.trials or result.elites or result.fault):
        return
    yield _tried(result)
    if result.fault:
        yield text(clean(result.fault, 400), "red")
    elif result.unmeasured is not None:
        yield text(so_far(result.unmeasured, result), "yellow")
    elif result.best is None:
        yield text("nothing stood the second measurement", "yellow")
    if result.elites:
        yield _elites(result)
        yield from more(len(result.elites))
        yield text(f"times over the default's ({changed(result.default, {})}); below 1 is faster", "dim")
    for state, reason, count in result.reasons[:MAX_REASONS]:
        yield text(f"{count} {_words(state)}: {clean(reason, 200) or 'without a reason'}", "yellow")
    if rest := sum(count for _, _, count in result.reasons[MAX_REASONS:]):
        yield text(f"... and {rest} more that failed, for other reasons: tune_log.csv", "dim")


def proven(content: Mapping[str, Any]) -> bool:
    """Whether some elite is faster than the default beyond doubt."""
    return any(elite.proven for elite in tune_result.read(content).elites)


def so_far(leader: Leader, result: TuneResult) -> str:
    """The best of a search that was cut off, in a sentence without an end."""
    figure, found = f"{leader.value:.3f} of the default's time", changed(leader.params, result.default)
    return f"cut off; the best so far, not measured again: trial {leader.trial}, {figure}, {clean(found, 300)}"


def _tried(result: TuneResult) -> Text:
    states = ", ".join(f"{count} {_words(state)}" for state, count in result.states.items())
    said = [
        f"{clean(result.name, 40)}: {result.trials} trials" + (f" ({states})" if states else ""),
        clean(result.gpu, 60),
        duration(result.wall_s) if result.wall_s is not None else "",
        "" if result.complete else "ended before its end",
    ]
    return text(" · ".join(word for word in said if word))


def _elites(result: TuneResult) -> Table:
    held_out = any(elite.held_out for elite in result.elites)
    rows = table("trial", "parameters", "searched", *(("held out",) if held_out else ()), "")
    for elite in result.elites[:MAX_ROWS]:
        measured = (elite.searched, elite.held_out) if held_out else (elite.searched,)
        figures = (str(elite.trial), changed(elite.params, result.default), *map(share, measured))
        rows.add_row(*map(text, figures), _verdict(elite))
    return rows


def _verdict(elite: Elite) -> Text:
    said = mark(_MARKS.get(elite.verdict, "warned"), elite.verdict)
    return said.append(f": {clean(elite.reason, 120)}") if elite.reason else said


def _words(state: str) -> str:
    return clean(state, 20).replace("_", " ")


def changed(params: Mapping[str, Value], default: Mapping[str, Value]) -> str:
    """The parameters that are not the default's."""
    parts = [f"{clean(k, 40)}={clean(v, 40)}" for k, v in params.items() if default.get(k) != v]
    return " ".join(parts) or "the default"


def share(ratio: Ratio | None) -> str:
    """``0.870 [0.860, 0.880]``, time over the default's with its 95 % interval; empty if not measured."""
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
