"""Run names: an id, its beginning or end, ``last``, ``last:JOB``, ``last~N``, ``last:JOB~N``; and the tags that people
give to runs, in ``results/tags.toml``, a small file that belongs into git.

A tag names one run or several: several launches of the same thing make a baseline that a comparison can trust most.
What the runs were is written beside their ids, so that the file means something where the runs are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    RunNotFound,
    UsageError,
    did_you_mean,
    nearest,
)
from orchestrator.base.sanitize import part
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
_MOST_COMPARED = 500
#: How many candidates are looked up: enough to name a few and to say that there are more.
_MOST_MATCHES = 6
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
    begun = [i for i in runs.active() if last.job is None or part(runs.plan_of(i), "plan", "job") == last.job]
    complete = [row.run_id for row in runs.rows(limit=last.back + 1, job=last.job)]  # the newest first
    # Ids sort by the second they were made in; within one second, what is still active is the newer.
    every = dict.fromkeys([*sorted(begun, reverse=True), *complete])
    newest = sorted(every, key=lambda i: (i[:16], i in begun), reverse=True)
    if len(newest) <= last.back:
        raise last.missing(len(newest))
    return newest[last.back]


def _matches(text: str, active: list[str], runs: Runs) -> list[str]:
    """The runs whose ids begin with ``text``, or, if none does, end with it."""
    if not text:
        return []
    matches = [i for i in active if i.startswith(text)]
    matches += [row[0] for row in runs.query(_STARTING, (text, text + "\U0010ffff", _MOST_MATCHES))]
    if not matches:
        matches = [i for i in active if i.endswith(text)]
        matches += [row[0] for row in runs.query(_ENDING, (len(text), text, _MOST_MATCHES))]
    return list(dict.fromkeys(matches))


def _unknown(name: str, active: list[str], runs: Runs) -> RunNotFound:
    if runs.rows(limit=1, job=name):
        return RunNotFound(f"{name!r} is a job, not a run", hint=f"to name its newest run: last:{name}")
    known = [*active, *(row.run_id for row in runs.rows(limit=_MOST_COMPARED))]
    tokens = {run_id[-6:]: run_id for run_id in reversed(known)}
    near = tokens.get(nearest(name, tokens) or "") if len(name) <= 8 else nearest(name, known)
    hint = f"did you mean {near}?" if near else "see the runs: fcctl results ls; see active runs: fcctl ps"
    return RunNotFound(f"no run has the name {name[:80]!r}", hint=hint)


TAGS = "tags.toml"
BASELINE = "baseline"
MAX_RUNS, MAX_NOTE, MAX_TAGS_BYTES = 100, 500, 1024 * 1024
_TAG = re.compile(r"[a-z][a-z0-9._-]{0,39}")
#: What a run can be called already.
_TAKEN = frozenset({"last", "all"})
_HEAD = """\
# Names of runs, written by `fcctl results tag`. Keep this file in git: the runs themselves stay on the machine that
# collected them (`fcctl results export -o runs.tar.zst NAME` takes them elsewhere).
"""


@dataclass(frozen=True)
class Tag:
    """A name and what it stands for; all but ``runs`` is for people."""

    name: str
    runs: tuple[str, ...]
    created: str = ""  # ISO 8601, UTC
    note: str = ""
    job: str = ""
    gpu: str = ""
    git_commit: str = ""


def check_name(name: str) -> str:
    """The name, if it can be one. Raises UsageError: it cannot."""
    if not _TAG.fullmatch(name) or name in _TAKEN or run_ids.is_valid(name):
        raise UsageError(
            f"{name[:60]!r} cannot be a tag",
            cause="a tag has 1 to 40 of the characters a-z, 0-9, dot, dash and underscore, begins with a letter, and "
            "is not 'last'",
            hint="for example: fcctl results tag baseline last",
        )
    return name


def with_tag(tags: Mapping[str, Tag], tag: Tag, *, move: bool) -> dict[str, Tag]:
    """The tags with ``tag`` among them. Raises ConflictError: the name stands for other runs, and ``move`` does not say
    that it may leave them."""
    old = tags.get(tag.name)
    if old is not None and old.runs != tag.runs and not move:
        raise ConflictError(
            f"the tag {tag.name!r} already names {', '.join(old.runs)}",
            hint=f"to move it: fcctl results tag --move {tag.name} {' '.join(tag.runs)}; or choose another name",
        )
    if old is not None and old.runs == tag.runs:
        tag = replace(tag, created=old.created, note=tag.note or old.note)
    return {**tags, tag.name: tag}


def unknown_tag(name: str, tags: Mapping[str, Tag]) -> NotFoundError:
    """The error of a name that no tag has."""
    hint = did_you_mean(name, tags) if tags else "no tags yet; to tag a run: fcctl results tag NAME RUN"
    return NotFoundError(f"unknown tag {name[:60]!r}", hint=hint)


def without_tag(tags: Mapping[str, Tag], name: str) -> dict[str, Tag]:
    """The tags but one. Raises NotFoundError: there is none of that name."""
    if name not in tags:
        raise unknown_tag(name, tags)
    return {key: tag for key, tag in tags.items() if key != name}


def read_tags(text: str, where: str) -> dict[str, Tag]:
    """The tags in the text of a file. Raises ConfigError: it is no such file. Somebody may have edited it, or a merge
    have left its marks."""
    from orchestrator.base import toml

    try:
        tables = toml.loads(text).get("tags", {})
        if not isinstance(tables, dict):
            raise ValueError("'tags' is not a table")  # noqa: TRY004  one kind of error for whatever is wrong
        return {name: _tag(name, table) for name, table in tables.items()}
    except (ValueError, UsageError) as exc:
        raise ConfigError(
            f"{where} cannot be read",
            cause=str(exc).splitlines()[0][:300],
            hint="correct the file, or restore it from git: git checkout -- results/tags.toml",
        ) from exc


def tags_text(tags: Mapping[str, Tag]) -> str:
    """The file's text: a table for each tag in alphabetical order, so that branches merge."""
    parts = [_HEAD]
    for name in sorted(tags):
        tag = tags[name]
        runs = ", ".join(_quoted(run) for run in tag.runs)
        said = {"created": tag.created, "note": tag.note, "job": tag.job, "gpu": tag.gpu, "git_commit": tag.git_commit}
        lines = [f'[tags."{name}"]', f"runs = [{runs}]"]
        parts.append("\n".join([*lines, *(f"{key} = {_quoted(value)}" for key, value in said.items() if value)]) + "\n")
    return "\n".join(parts)


def _tag(name: str, table: Any) -> Tag:
    check_name(name)
    runs = table.get("runs") if isinstance(table, dict) else None
    if not isinstance(runs, list) or not runs or len(runs) > MAX_RUNS:
        raise ValueError(f"tag {name!r} has no list of runs")
    wrong = [run for run in runs if not isinstance(run, str) or not run_ids.is_valid(run)]
    if wrong:
        raise ValueError(f"tag {name!r}: {wrong[0]!r:.80} is not a run id")
    texts = {key: table.get(key, "") for key in ("created", "note", "job", "gpu", "git_commit")}
    return Tag(name, tuple(runs), **{key: str(value)[:MAX_NOTE] for key, value in texts.items()})


def _quoted(text: str) -> str:
    """A basic string of TOML; JSON's escapes are among TOML's."""
    return json.dumps(text).replace("\x7f", "\\u007f")
