"""Names that people give to runs. They live in ``results/tags.toml``, a small file that belongs into git.

A tag names one run or several: several launches of the same thing make a baseline that a comparison can trust most.
What the runs were is written beside their ids, so that the file means something where the runs are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import ConfigError, ConflictError, NotFoundError, UsageError, did_you_mean

FILE = "tags.toml"
BASELINE = "baseline"
MAX_RUNS, MAX_NOTE, MAX_BYTES = 100, 500, 1024 * 1024
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,39}")
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
    if not _NAME.fullmatch(name) or name in _TAKEN or run_ids.is_valid(name):
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


def without_tag(tags: Mapping[str, Tag], name: str) -> dict[str, Tag]:
    """The tags but one. Raises NotFoundError: there is none of that name."""
    if name not in tags:
        raise NotFoundError(f"unknown tag {name[:60]!r}", hint=did_you_mean(name, tags))
    return {key: tag for key, tag in tags.items() if key != name}


def parse(text: str, where: str) -> dict[str, Tag]:
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


def render(tags: Mapping[str, Tag]) -> str:
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
