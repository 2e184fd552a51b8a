"""Finished runs by name or tag, with their documents, the figure that stands for each, and the runs that it comes
from; and which runs may be deleted, never one that a tag names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import Clock, epoch, iso
from orchestrator.base.errors import FcctlError, RunNotFound, UsageError
from orchestrator.results.documents import Documents, load
from orchestrator.results.records import SCHEMA_VERSION, RunRecord, RunRow
from orchestrator.results.store.names import BASELINE, Last, Tag, check_name
from orchestrator.results.store.rows import gpu_name

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


def give(store: FileStore, clock: Clock, name: str, runs: list[str], *, move: bool = False, note: str = "") -> Tag:
    """Let ``name`` stand for ``runs``, each an id, a part of one, ``last``, or another tag. Raises UsageError: it
    cannot be a tag, or no run is named; RunNotFound: one of the runs is not here, or not complete; ConflictError: the
    name stands for other runs already, and ``move`` is not given."""
    check_name(name)
    ids = list(dict.fromkeys(run_id for word in runs for run_id in named(store, word)))
    if not ids:
        raise UsageError("name the run for the tag", hint=f"for example: fcctl results tag {name} last")
    first = store.get(ids[0])
    for other in ids[1:]:
        store.get(other)
    tag = Tag(
        name=name,
        runs=tuple(ids),
        created=iso(clock.now()) or "",
        note=note,
        job=first.job,
        gpu=gpu_name(first.host) or "",
        git_commit=first.source.git_commit or "",
    )
    store.tag(tag, move=move)
    return tag


def named(store: FileStore, words: str, root: Path | None = None) -> list[str]:
    """The complete runs that ``words`` stands for: an id, a part of one, ``last``, ``last:JOB``, ``last~1``, a tag, a
    commit or branch of the repository in ``root``, or several of these with commas between. Raises RunNotFound: none is
    called so, or a tag's run is not on this machine."""
    run_ids: list[str] = []
    for word in filter(None, (part.strip() for part in words.split(","))):
        run_ids += _one(store, word, root)
    if not run_ids:
        raise RunNotFound(f"no run has the name {words[:80]!r}", hint="see the runs: fcctl results ls")
    return list(dict.fromkeys(run_ids))


def _one(store: FileStore, word: str, root: Path | None) -> list[str]:
    if last := Last.of(word):
        rows = store.rows(limit=last.back + 1, job=last.job)
        if len(rows) <= last.back:
            raise last.missing(len(rows), "complete ")
        return [rows[last.back].run_id]
    tag = store.tags().get(word) if word[:1].isalpha() else None  # run ids begin with a digit
    if tag is not None:
        return _at_hand(store, tag)
    if word == BASELINE:
        raise RunNotFound("no baseline is set yet", hint="choose a run: fcctl results tag baseline RUN (or last:JOB)")
    try:
        return [store.resolve(word)]
    except RunNotFound as exc:
        if runs := _of_commit(store, word, root):
            return runs
        if store.tags() and not exc.hint:
            exc.hint = f"tags: {', '.join(store.tags())}"
        raise


def _of_commit(store: FileStore, word: str, root: Path | None) -> list[str]:
    """The newest run that measured the commit called ``word``, and the passed ones of the same source, job and GPU.
    Raises RunNotFound: git knows the commit, and no complete run is of it."""
    from orchestrator.results.compare.history import commit_of

    sha = commit_of(root, word) if root else None
    if sha is None:
        return []
    rows = store.rows(git_commit=sha)
    measured = [row for row in rows if store.measurements(limit=1, run_id=row.run_id)] or rows
    if not measured:
        raise RunNotFound(
            f"no run is of {word[:60]!r}, commit {sha[:10]}", hint="check it out, then: fcctl run JOB"
        )  # fmt: skip
    first = next((row for row in measured if row.status == "passed"), measured[0])
    alike = [(row.tree_sha256, row.job, row.target, row.gpu, row.status) for row in measured]
    same = (first.tree_sha256, first.job, first.target, first.gpu, first.status)
    return [row.run_id for row, one in zip(measured, alike, strict=True) if one == same]


def _at_hand(store: FileStore, tag: Tag) -> list[str]:
    missing = [run for run in tag.runs if not store.is_complete(run)]
    if not missing:
        return list(tag.runs)
    raise RunNotFound(
        f"the tag {tag.name!r} names the run {missing[0]}, which this computer does not have",
        cause=f"{len(missing)} of its {len(tag.runs)} runs were collected on another computer, or deleted",
        hint=(
            f"on the other computer: fcctl results export {tag.name} -o {tag.name}.tar.zst; then on this one: fcctl "
            f"results import {tag.name}.tar.zst"
        ),
    )


def tags_of(store: FileStore) -> dict[str, list[str]]:
    """Run id -> its tags; none if the file cannot be read: who only lists runs is not to be kept from it."""
    by_run: dict[str, list[str]] = {}
    try:
        tags = store.tags()
    except FcctlError:
        return {}
    for tag in tags.values():
        for run in tag.runs:
            by_run.setdefault(run, []).append(tag.name)
    return by_run


@dataclass(frozen=True)
class Shown:
    """A complete run with all that is worth showing of it."""

    record: RunRecord
    folder: Path
    documents: Documents

    def as_json(self) -> dict[str, Any]:
        """One document: the record, the documents' content, and where the files are."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.record.model_dump(mode="json"),
            "documents": [
                {"step": d.step, "kind": d.kind, "path": d.path, "content": d.content} for d in self.documents.items
            ],
            "problems": list(self.documents.problems),
            "folder": str(self.folder),
        }


def show(store: FileStore, name: str = "last") -> Shown:
    """The run called ``name``, the first of several, as :func:`named` takes it. Raises RunNotFound, RunNotFinished: as
    the store does."""
    return whole(store, named(store, name)[0])


def whole(store: FileStore, run_id: str) -> Shown:
    """The complete run of this id with its documents."""
    record, folder = store.get(run_id), store.folder(run_id)
    return Shown(record, folder, load(record, folder))


def chosen(store: FileStore, names: Sequence[str], root: Path | None = None) -> list[Shown]:
    """The runs called ``names`` as :func:`named` takes them, each once, in the order given."""
    return [whole(store, run_id) for run_id in dict.fromkeys(i for name in names for i in named(store, name, root))]


#: Generations, and runs of each direction.
DEPTH, RUNS = 10, 50
_LINE = """
    WITH RECURSIVE line (id, depth) AS (
        VALUES (?, 0) UNION SELECT {to}, depth + 1 FROM parents JOIN line ON {of} = id WHERE depth < ?
    ) SELECT id, min(depth) FROM line WHERE id != ? GROUP BY id ORDER BY 2, 1 LIMIT ?
"""


def lineage(store: FileStore, run_id: str) -> tuple[list[str], list[str]]:
    """Ids of the runs before it, the first one first, and of those after it. Runs that were deleted are named, too."""
    given = (run_id, DEPTH, run_id, RUNS)
    before, after = (
        [str(name) for name, _ in store.query(_LINE.format(to=to, of=of), given)]
        for to, of in (("parent", "run_id"), ("run_id", "parent"))
    )
    return before[::-1], after


#: The benchmark that is the main one wherever it was measured.
MISSION = "mission"
#: Endings whose figure is the job's: of one that somebody ended it is that of the kernels timed until then. And those
#: that others are compared with: every step went well.
MEASURED, COMPARED = ("passed", "incomplete", "failed"), ("passed", "incomplete")
#: Names of what a program does beside its kernels.
_BESIDE = re.compile(
    r"(?<![a-z])(?:(?:host|device|[hd]) ?(?:to|2) ?(?:host|device|[hd])|transfers?|mem(?:cpy|set)|(?:de)?alloc\w*"
    r"|cpu|host|elapsed|wall|setup|init\w*|warm-?up|compil\w*|overhead|aten::\w+)(?![a-z])",
    re.IGNORECASE,
)
_QUERY = """
    SELECT run_id, job, benchmark, mode, unit, variant, min(p50), ratio, spread FROM benchmarks
    WHERE run_id IN ({}) AND reference = {} GROUP BY run_id, benchmark, mode, unit{} ORDER BY run_id
"""


#: Units of time, in us.
_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Headline:
    """``p50`` and ``reference``, of the fastest code beside it that is not ours, in ``unit``."""

    run_id: str
    benchmark: str
    mode: str
    unit: str
    variant: str
    p50: float
    reference: float | None = None
    #: The time over the reference's, as measured in pairs where it was.
    ratio: float | None = None
    #: The 90th percentile over the median.
    spread: float | None = None


_IN_COMMON = """
    SELECT benchmark, variant, mode FROM benchmarks WHERE run_id IN (?, ?) AND reference = 0
    GROUP BY benchmark, variant, mode HAVING count(DISTINCT run_id) = 2
"""


def in_common(store: FileStore, run_id: str, other: str) -> list[str]:
    """Names of the benchmarks that both runs measured."""
    return [" ".join(filter(None, names)) for names in store.query(_IN_COMMON, (run_id, other))]


def headlines(store: FileStore, rows: Iterable[RunRow]) -> dict[str, Headline]:
    """By run id, each in the unit of its job's newest run; a run that measured nothing has none."""
    run_ids = [row.run_id for row in rows]
    if not run_ids:
        return {}
    ours, theirs = (
        store.query(_QUERY.format(", ".join("?" * len(run_ids)), flag, each), run_ids)
        for flag, each in ((0, ""), (1, ", place"))
    )
    beside: dict[tuple[str, str, str, str], list[float]] = {}
    for run_id, _, name, mode, unit, _, p50, *_ in theirs:  # by the case that names begin with
        beside.setdefault((run_id, mode, unit, name.partition("/")[0]), []).append(p50)
    jobs: dict[str, list[tuple[str, str]]] = {}
    for _, job, name, mode, *_ in ours:
        jobs.setdefault(job, []).append((name, mode))
    main = {job: _main(names_of) for job, names_of in jobs.items()}
    last = {job: unit for _, job, name, mode, unit, *_ in ours if (name, mode) == main[job]}  # of the newest run
    found = {}
    for run_id, job, name, mode, unit, variant, p50, ratio, spread in ours:
        factor = 1.0 if unit == last[job] else _US.get(unit, 0.0) / _US.get(last[job], math.inf)
        if (name, mode) == main[job] and factor:  # else its figure has no place beside the others
            near = p50 / ratio if ratio else 0.0  # other steps time the same code again
            others = beside.get((run_id, mode, unit, name.partition("/")[0]), ())
            reference = min(others, key=lambda time: abs(time - near), default=None)
            times = factor * p50, reference and factor * reference
            found[run_id] = Headline(run_id, name, mode, last[job], variant, *times, ratio, spread)
    return found


def _main(names: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """``mission``, else what most runs of the job measured; of equals the first that is about a kernel."""
    counts = {one: names.count(one) for one in dict.fromkeys(names)}
    return max(counts, key=lambda one: (one[0] == MISSION, counts[one], not _BESIDE.search(one[0])))


@dataclass(frozen=True)
class Rules:
    """Which go: older than ``older_s`` seconds; the oldest until no more than ``max_bytes`` are left. Which stay
    nevertheless: the newest ``keep_last``, and those with one of the ``keep_best`` best times of any benchmark."""

    older_s: float | None = None
    max_bytes: int | None = None
    keep_last: int = 1
    keep_best: int = 0
    job: str | None = None


@dataclass(frozen=True)
class PruneCandidate:
    run_id: str
    created: str
    status: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """The runs to delete, oldest first, and the number of runs that a rule selects but that are kept."""

    doomed: tuple[PruneCandidate, ...]
    spared: int

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.doomed)


def plan(store: FileStore, rules: Rules, now: float) -> Plan:
    """Choose; nothing is deleted. Raises UsageError: no rule says which runs go; ConfigError: the tags cannot be read,
    so the runs that they keep are unknown."""
    if rules.older_s is None and rules.max_bytes is None:
        raise UsageError(
            "choose which runs to delete",
            hint="fcctl results prune --older-than 90d, or --max-size 10GB; to see them first: --dry-run",
        )
    rows = store.rows(job=rules.job)
    kept = {run for tag in store.tags().values() for run in tag.runs} | {r.run_id for r in rows[: rules.keep_last]}
    if rules.keep_best:
        kept |= store.best(rules.keep_best)
    oldest_first = rows[::-1]
    old = rules.older_s
    named = {r.run_id for r in oldest_first if old is not None and now - (epoch(r.created) or now) > old}
    sizes: dict[str, int] = {}
    if rules.max_bytes is not None:
        sizes = {r.run_id: store.size(r.run_id) for r in oldest_first}
        named |= _over(oldest_first, sizes, named - kept, kept, rules.max_bytes)
    doomed = [r for r in oldest_first if r.run_id in named and r.run_id not in kept]
    sizes.update({r.run_id: store.size(r.run_id) for r in doomed if r.run_id not in sizes})
    candidates = (PruneCandidate(r.run_id, r.created, r.status, sizes[r.run_id]) for r in doomed)
    return Plan(tuple(candidates), spared=len(named & kept))


def carry_out(store: FileStore, chosen: Plan) -> list[PruneCandidate]:
    """Delete what was chosen, but for what was tagged since; returns what went."""
    tagged = {run for tag in store.tags().values() for run in tag.runs}
    going = [run for run in chosen.doomed if run.run_id not in tagged]
    store.delete([run.run_id for run in going])
    return going


def _over(rows: Sequence[RunRow], sizes: dict[str, int], gone: set[str], kept: set[str], most: int) -> set[str]:
    """The oldest runs beyond ``gone`` that have to go until the rest fits; those to be kept count, and stay."""
    left = sum(sizes.values()) - sum(sizes[run_id] for run_id in gone)
    more: set[str] = set()
    for row in rows:
        if left <= most:
            break
        if row.run_id not in gone and row.run_id not in kept:
            more.add(row.run_id)
            left -= sizes[row.run_id]
    return more
