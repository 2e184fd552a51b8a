"""From a search's result to rows of a table: which are adopted, and why others are not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.base import json_text
from orchestrator.results.timings import Ratio
from orchestrator.results.tuning import Elite, TuneResult, Value

if TYPE_CHECKING:
    from fcctl_tune.search.space import Space
    from fcctl_tune.search.spec import Spec

SCHEMA_VERSION = 1
#: Characters that the name of a GPU or a case may have.
MAX_NAME = 100


#: Why an elite with such a verdict is not adopted.
WHY_NOT = {
    "undecided": "the interval contains 1",
    "slower": "it is slower",
    "mixed": "it is slower on the held-out cases, and faster only on the searched cases",
}


@dataclass(frozen=True)
class Row:
    """The parameters for a case on a GPU, with the run that measured them."""

    gpu: str
    sms: int | None
    case: str
    params: Mapping[str, Value]
    run: str
    #: Time over the default's on the case, and on all held-out cases.
    ratio: Ratio | None = None
    held_out: Ratio | None = None

    def as_dict(self) -> dict[str, Any]:
        evidence = {"ratio": _interval(self.ratio), "held_out": _interval(self.held_out)}
        return {
            "gpu": self.gpu, **({"sms": self.sms} if self.sms else {}), "case": self.case, "params": dict(self.params),
            "run": self.run, **{key: value for key, value in evidence.items() if value},
        }  # fmt: skip


@dataclass(frozen=True)
class Adoption:
    """Rows of one run, and the doubts about them."""

    search: str
    #: The variables that the search's file declares, with their values in the run.
    env: Mapping[str, str]
    rows: tuple[Row, ...]
    doubts: tuple[str, ...] = ()


def requested(spec: str) -> Spec | None:
    """The spec that a host was sent; None if another version wrote it."""
    from fcctl_tune.errors import SpecError
    from fcctl_tune.search.spec import Spec

    try:
        return Spec.from_dict(json_text.loads(spec))
    except (ValueError, SpecError):
        return None


def of_result(result: TuneResult, run: str, env: Mapping[str, str], held_out: Sequence[str] = ()) -> Adoption:
    """For each searched case its fastest elite, if that is certain.

    Only elites that are faster on held-out cases can win; without any, the best one is proposed, with a doubt.
    ``held_out`` are the cases that the spec holds out.
    """
    must = [case for case in held_out if case not in result.cases]
    proven = [elite for elite in result.elites if elite.proven_elsewhere and (elite.held_out or not must)]
    rows = list(_rows(result, proven, run, certain=True))
    doubts = []
    if not result.complete:
        doubts.append("the search is not complete: some elites were not measured again")
    if len(result.gpus) > 1:
        doubts.append(f"its trials ran on different GPUs ({', '.join(result.gpus)}), so their times cannot be compared")
    if not result.gpu:
        doubts.append("the document does not name the GPU")
    if not rows:
        doubts.append(_unproven(result, must))
        rows = list(_rows(result, [result.best] if result.best else [], run, certain=False))
    return Adoption(result.name, env, tuple(rows), tuple(doubts))


def _unproven(result: TuneResult, must: Sequence[str]) -> str:
    best = result.best
    if best is None:
        return "no configuration passed the second measurement"
    ratio = best.held_out or best.searched
    if ratio is None or ratio.low is None or ratio.high is None:
        return "the best configuration was not measured interleaved with the default"
    where = "the held-out cases" if best.held_out else "the searched cases (no case was held out)"
    if must and best.held_out is None:
        return "the elites were not measured on the held-out cases"
    if not best.proven_elsewhere:
        measured = (
            f"the best takes {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of the default's time on {where}"
        )
        return f"{measured}: {WHY_NOT.get(best.verdict, best.verdict)}"
    return "no configuration is certainly faster on any case"


def _rows(result: TuneResult, elites: Sequence[Elite], run: str, *, certain: bool) -> Iterable[Row]:
    for case in result.cases:
        times = [(c.ratio, e) for e in elites for c in e.cases if c.case == case]
        if certain:
            times = [(ratio, e) for ratio, e in times if ratio.high is not None and ratio.high < 1]
        if times:
            ratio, elite = min(times, key=lambda one: one[0].value)
            yield Row(result.gpu, result.sms, case, elite.params, run, ratio, elite.held_out)


def fault(row: Row, space: Space | None) -> str:
    """Why no search can have this row; empty if one can. Without a known ``space`` any valid parameters can be."""
    from fcctl_tune.errors import SpecError
    from fcctl_tune.search.space import Space

    for what, name in (("GPU", row.gpu), ("case", row.case)):
        if not name.isprintable() or len(name) > MAX_NAME:
            return f"the name of its {what} is invalid: {name[:MAX_NAME]!r}"
    try:
        any_legal = Space.from_dict({"parameters": {key: [value] for key, value in row.params.items()}})
    except SpecError as error:
        return str(error)
    if space is not None and row.params not in space:
        return f"{any_legal.key(any_legal.default)} is not a configuration of the search"
    return ""


def table(text: str, search: str, rows: Iterable[Row], env: Mapping[str, str] = MappingProxyType({})) -> str:
    """Our own table with ``rows``, which replace those of the same search, ``env``, GPU and case. Raises: ValueError,
    if ``text`` is no such table."""
    known: dict[str, Any] = json_text.loads(text) if text.strip() else {"schema_version": SCHEMA_VERSION, "rows": []}
    if not isinstance(known, dict) or known.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"its schema_version is not {SCHEMA_VERSION}")
    entries = known.get("rows")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it has no list of rows")
    kept = {_key(entry): entry for entry in entries}
    for row in rows:
        entry = {"search": search, **row.as_dict(), **({"env": dict(env)} if env else {})}
        kept[_key(entry)] = entry
    body = ",\n".join("  " + json.dumps(kept[key]) for key in sorted(kept))
    more = {key: value for key, value in known.items() if key not in ("schema_version", "rows")}
    others = "".join(f",\n {json.dumps(key)}: {json.dumps(value)}" for key, value in more.items())
    return f'{{\n "schema_version": {SCHEMA_VERSION},\n "rows": [\n{body}\n ]{others}\n}}\n'


def _key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    env = json.dumps(entry["env"], sort_keys=True) if entry.get("env") else ""
    return (str(entry.get("search")), str(entry.get("gpu")), str(entry.get("case")), env)


def _interval(ratio: Ratio | None) -> list[float] | None:
    """``[ratio, low, high]`` of the 95 % interval."""
    if ratio is None:
        return None
    return [round(v, 4) for v in (ratio.value, ratio.low, ratio.high) if v is not None]
