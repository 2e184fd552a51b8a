"""Run names: an id, its beginning or end, ``last``, ``last:JOB``, ``last~N``, ``last:JOB~N``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import RunNotFound, nearest
from orchestrator.results.records import RunRow

_NAME = re.compile(r"last(?::(?P<job>[^~]*))?(?P<back>~[0-9]{0,4})?")


@dataclass(frozen=True)
class Last:
    """The run ``back`` before the newest one, of ``job`` if it is given."""

    job: str | None
    back: int

    @classmethod
    def of(cls, name: str) -> Last | None:
        """What ``name`` means, if it is one of these; ``last~`` is ``last~1``, as in git."""
        match = _NAME.fullmatch(name.strip())
        if match is None:
            return None
        back = match["back"]
        return cls(match["job"] or None, 0 if back is None else int(back[1:] or 1))

    def missing(self, there: int, kind: str = "") -> RunNotFound:
        """That only so many runs of the ``kind`` are ``there``."""
        of = f" of job {self.job!r}" if self.job else ""
        active_hint = "; see active runs: fcctl ps" if kind else ""
        if not there:
            hint = f"start one: fcctl run {self.job or 'JOB'}{active_hint}"
            return RunNotFound(f"no {kind}run{of} yet", hint=hint)
        hint = f"see them: fcctl results ls{f' --job {self.job}' if self.job else ''}{active_hint}"
        return RunNotFound(
            f"there {'are' if there > 1 else 'is'} only {there} {kind}run{'s' * (there > 1)}{of}", hint=hint
        )


#: How many of the newest ids are compared to find the one a mistyped name may have meant.
_RECENT = 500
#: How many candidates are looked up: enough to name a few and to say that there are more.
_SOME = 6
_STARTING = "SELECT run_id FROM runs WHERE run_id >= ? AND run_id < ? ORDER BY run_id DESC LIMIT ?"
_ENDING = "SELECT run_id FROM runs WHERE substr(run_id, -?) = ? ORDER BY run_id DESC LIMIT ?"


class Runs(Protocol):
    """What a name is looked up in."""

    def active(self) -> list[str]: ...
    def is_complete(self, run_id: str) -> bool: ...
    def plan_of(self, run_id: str) -> dict[str, Any] | None: ...
    def query(self, sql: str, parameters: Sequence[str | int] = ()) -> list[tuple[Any, ...]]: ...
    def rows(self, *, limit: int | None = None, **filters: str | None) -> list[RunRow]: ...


def resolve(name: str, runs: Runs) -> str:
    """The one run ``name`` stands for; see :meth:`orchestrator.results.store.store.FileStore.resolve`."""
    name = name.strip()
    if last := Last.of(name):
        return _last(last, runs)
    text = name.lower()
    active = runs.active()
    if run_ids.is_valid(text) and (text in active or runs.is_complete(text)):
        return text
    matches = _matches(text, active, runs)
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = ", ".join(matches[:4])
        more = ", ..." if len(matches) > 4 else ""
        raise RunNotFound(f"{name!r} matches several runs", hint=f"type more characters of one of: {some}{more}")
    raise _unknown(name, active, runs)


def _last(last: Last, runs: Runs) -> str:
    begun = [i for i in runs.active() if last.job is None or _job_of(i, runs) == last.job]
    complete = [row.run_id for row in runs.rows(limit=last.back + 1, job=last.job)]  # the newest first
    # Ids sort by the second they were made in; within one second, what is still active is the newer.
    every = dict.fromkeys([*sorted(begun, reverse=True), *complete])
    newest = sorted(every, key=lambda i: (i[:16], i in begun), reverse=True)
    if len(newest) <= last.back:
        raise last.missing(len(newest))
    return newest[last.back]


def _job_of(run_id: str, runs: Runs) -> str | None:
    """The job in an active run's saved plan, which holds the host's plan directly or as ``plan``."""
    saved = runs.plan_of(run_id) or {}
    inner = saved.get("plan")
    job = (inner if isinstance(inner, dict) else saved).get("job")
    return job if isinstance(job, str) else None


def _matches(text: str, active: list[str], runs: Runs) -> list[str]:
    """The runs whose ids begin with ``text``, or, if none does, end with it."""
    if not text:
        return []
    matches = [i for i in active if i.startswith(text)]
    matches += [row[0] for row in runs.query(_STARTING, (text, text + "\U0010ffff", _SOME))]
    if not matches:
        matches = [i for i in active if i.endswith(text)]
        matches += [row[0] for row in runs.query(_ENDING, (len(text), text, _SOME))]
    return list(dict.fromkeys(matches))


def _unknown(name: str, active: list[str], runs: Runs) -> RunNotFound:
    if runs.rows(limit=1, job=name):
        return RunNotFound(f"{name!r} is a job, not a run", hint=f"to name its newest run: last:{name}")
    known = [*active, *(row.run_id for row in runs.rows(limit=_RECENT))]
    tokens = {run_id[-6:]: run_id for run_id in reversed(known)}
    near = tokens.get(nearest(name, tokens) or "") if len(name) <= 8 else nearest(name, known)
    hint = f"did you mean {near}?" if near else "see the runs: fcctl results ls; see active runs: fcctl ps"
    return RunNotFound(f"no run has the name {name[:80]!r}", hint=hint)
