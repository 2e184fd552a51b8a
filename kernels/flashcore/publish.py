"""``python -m flashcore.publish RUN... --to results/reference/GPU``: measured runs as part of this repository.

Of each run it keeps what the tables and a doubter need: run.json, the documents, the compiler's figures for sm_89, a
thin telemetry, stage5's artifacts; no logs, host names, users or paths. Then it writes the tables of
results/reference/README.md anew, from all that is published (:mod:`flashcore.tables`). Without runs it only does the
latter. Needs neither torch nor a GPU.

A ``notes.json`` in the GPU's folder, ``{"stage5": "why it is slower .."}``, is written by hand: reasons for negative
results. A ``peaks.json`` there, of ``python -m flashcore peaks``, corrects the ceilings of all its runs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flashcore import documents, roofline, tables
from flashcore.errors import FlashcoreError, UsageError

KINDS = ("environment", "build", "correctness", "benchmark", "profile", "metrics")
#: Of run.json; the rest names the machine, or people.
RUN_KEYS = ("schema_version", "run_id", "job", "title", "status", "exit_code", "created", "started", "finished",
            "source", "host", "steps")  # fmt: skip
STEP_KEYS = ("id", "status", "exit_code", "started", "finished", "duration_s", "attempts", "activity", "gates")
#: Never published, wherever they are.
PRIVATE = frozenset({
    "hostname", "user", "home", "env", "resolved_env", "tools", "boot_id", "uuid", "python", "path", "disk", "command",
    "artifacts", "checks", "nvcc", "cxx", "process", "raw", "log",
})  # fmt: skip
#: An absolute path of two parts or more; after a letter (``-I/home/..``) only where people's folders are.
_PATH = re.compile(
    r"(?:(?<![\w.:/~])(?:~|/[\w.@+-]+)|(?<![.:/])/(?:home|root|Users|mnt|tmp|var|opt|srv))(?:/[\w.@+-]+)+"
)
MAX_TELEMETRY_LINES = 600
DOCS = Path("results/reference/README.md")
BEGIN, END = "<!-- measured: written by python -m flashcore.publish -->", "<!-- /measured -->"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.publish", description="Publish runs, render the tables.")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of results/runs")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="a folder such as results/reference/h200")
    parser.add_argument("--docs", type=Path, default=DOCS, help=f"default {DOCS}")
    options = parser.parse_args(argv)
    try:
        for run in options.runs:
            print(publish(run, options.to))
        write_tables(options.docs, options.to.parent)
        print(options.docs)
    except FlashcoreError as e:
        print("error: " + str(e), file=sys.stderr)
        return e.exit_code
    return 0


def publish(run: Path, to: Path) -> Path:
    """Copy what is worth keeping of the run in ``run``; returns its new folder in ``to``.

    Raises:
        UsageError: ``run`` is not the folder of a complete run.
    """
    record = _read(run / "run.json")
    if record is None or not re.fullmatch(r"[a-z0-9-]{1,63}", str(record.get("run_id"))):
        raise UsageError(f"{run} is not a run's folder", hint="name results/runs/ID; see the runs: fcctl results ls")
    target = to / record["run_id"]
    target.mkdir(parents=True, exist_ok=True)
    kept = {key: record.get(key) for key in RUN_KEYS}
    kept["steps"] = [{key: step.get(key) for key in STEP_KEYS} for step in record.get("steps") or []]
    documents.write_json(target / "run.json", scrubbed(kept))
    for step, path, document in _documents(run):
        compact = json.dumps(scrubbed(_lighter(document)), separators=(",", ":"), allow_nan=False)
        documents.write_text(target / f"{step}-{path.name}", compact + "\n")
        log = path.with_suffix(".log")
        if document["kind"] == "build" and log.is_file():
            figures = ptxas_of(log.read_text(encoding="utf-8", errors="replace"), "sm_89")
            if figures:
                documents.write_text(target / f"ptxas-{log.name}", scrubbed(figures))
    _telemetry(run / "telemetry.jsonl", target / "telemetry.jsonl")
    _artifacts(run / "artifacts", target / "artifacts")
    return target


def _artifacts(source: Path, target: Path) -> None:
    """The files that a stage5 run must give (its job lists them), but for profiles, which are large."""
    for pattern in ("bench/*.json", "tune/topk.json", "tune/tune_log.csv", "reports/summary.md"):
        for path in sorted(source.glob(pattern)):
            kept = _read(path) if path.suffix == ".json" else path.read_text(encoding="utf-8", errors="replace")
            clean = scrubbed(kept)
            text = clean if isinstance(clean, str) else json.dumps(clean, indent=1) + "\n"
            (target / path.parent.name).mkdir(parents=True, exist_ok=True)
            documents.write_text(target / path.relative_to(source), text)


def write_tables(docs: Path, reference: Path) -> None:
    """Replace what lies between the markers of ``docs`` by tables of all that is published below ``reference``.

    Raises:
        UsageError: no such file, or no markers in it.
    """
    try:
        text = docs.read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(
            f"{docs} cannot be read", cause=e.strerror, hint="run this command in the root of the repository"
        ) from e
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(
            f"{docs} has no lines that mark the place of the tables", hint=f"add two lines: {BEGIN} and {END}"
        )
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    gpus = list(published(reference))
    rendered = "\n\n".join(filter(None, [*map(tables.render, gpus), tables.render_agreement(gpus)]))
    documents.write_text(docs, f"{before}{BEGIN}\n\n{rendered or 'No results are published yet.'}\n\n{END}{after}")


def published(reference: Path) -> Iterator[tables.Evidence]:
    """What is below ``reference``, a GPU at a time; of two runs the later one's documents count."""
    for folder in sorted(p for p in reference.glob("*") if p.is_dir()):
        notes = _read(folder / "notes.json") or {}
        found = tables.Evidence(folder.name, notes={str(k): str(v) for k, v in notes.items()})
        for run in sorted(p for p in folder.iterdir() if (p / "run.json").is_file()):
            read = [_read(path) for path in sorted(run.glob("*.json"))]
            found.add_run(_read(run / "run.json") or {}, [d for d in read if d is not None and d.get("kind") in KINDS])
        if (folder / "peaks.json").is_file():
            found.corrected = roofline.load(str(folder / "peaks.json"))["metrics"]
        if found.runs:
            yield found


def _documents(run: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for path in sorted(run.glob("steps/*/out/*.json")):
        document = _read(path)
        if document is not None and document.get("kind") in KINDS:
            yield path.parent.parent.name, path, document


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def scrubbed(value: Any) -> Any:
    """``value`` without what names a machine or a person: private keys are dropped, paths keep their last part."""
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items() if key not in PRIVATE}
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if isinstance(value, str):
        return _PATH.sub(lambda match: ".../" + match.group().rsplit("/", 1)[1], value)
    return value


def _lighter(document: dict[str, Any]) -> dict[str, Any]:
    """A benchmark without one clock reading per block: the range says as much. Samples stay."""
    if document["kind"] != "benchmark":
        return document
    comparisons = [{**c, "clocks": _ranges(c.get("clocks") or [])} for c in document.get("comparisons", [])]
    return {**document, "comparisons": comparisons}


def _ranges(readings: list[dict[str, Any]]) -> dict[str, Any]:
    ranges: dict[str, Any] = {"readings": len(readings)}
    for key in ("sm_mhz", "mem_mhz", "power_w", "temperature_c"):
        values = [r[key] for r in readings if isinstance(r.get(key), (int, float))]
        if values:
            ranges[key] = [min(values), max(values)]
    ranges["throttled"] = sorted({reason for r in readings for reason in r.get("throttled") or []})
    return ranges


def ptxas_of(log: str, arch: str) -> str:
    """The lines of a compiler's log that are about ``arch``."""
    kept: list[str] = []
    wanted = False
    for line in log.splitlines():
        if "Compiling entry function" in line:
            wanted = f"'{arch}'" in line
        elif "bytes gmem" in line:
            wanted = False
        if wanted:
            kept.append(line)
    return "".join(line + "\n" for line in kept)


def _telemetry(source: Path, target: Path) -> None:
    """At most :data:`MAX_TELEMETRY_LINES` of the run's readings, evenly spread."""
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    step = max(1, -(-len(lines) // MAX_TELEMETRY_LINES))
    kept = []
    for line in lines[::step]:
        try:
            kept.append(json.dumps(scrubbed(json.loads(line)), separators=(",", ":")))
        except ValueError:
            continue
    documents.write_text(target, "".join(line + "\n" for line in kept))


if __name__ == "__main__":
    sys.exit(main())
