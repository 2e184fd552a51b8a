"""Runs for other programs: one JSON object, the shape of FlashCore's own scripts, or an archive of the folder."""

from __future__ import annotations

import gzip
import math
import os
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from orchestrator.base.clock import epoch
from orchestrator.base.errors import NotFoundError
from orchestrator.base.untrusted import finite
from orchestrator.results.look import Shown
from orchestrator.results.measurement import HOW_TO
from orchestrator.results.records import SCHEMA_VERSION
from orchestrator.results.timings import Timing, reference_of, shape_of, timings

#: The shape FlashCore's goals are about; the export speaks of it where a benchmark has it.
MISSION = "mission"


def whole(shown: Shown) -> dict[str, Any]:
    """run.json and every document in one object. Numbers JSON does not have (NaN) become null."""
    found: dict[str, Any] = finite(shown.as_json())
    del found["folder"]  # this machine's business
    return found


def flashcore(shown: Shown) -> dict[str, Any]:
    """``.results.mission.flashcore.p50``, ``.results.mission.pytorch.p50``, ``.config``, ``.speedup``: microseconds.

    ``speedup`` is PyTorch's median over ours, above 1 where ours is faster; null if PyTorch was not timed.

    Raises:
        NotFoundError: the run has no benchmark of ours.
    """
    results: dict[str, dict[str, Any]] = {}
    config: dict[str, int] = {}
    for document in shown.documents.of("benchmark"):
        found = timings(document.content)
        for case, (ours, theirs) in _pairs(found).items():
            results.setdefault(case, _result(ours, theirs))
            if case == MISSION or not config:
                config = ours.shape or shape_of(document.content.get("config")) or config
    if not results:
        raise NotFoundError(
            f"run {shown.record.run_id} has no benchmark to export",
            cause="none of its steps wrote a benchmark document with a p50",
            hint=HOW_TO,
        )
    main = results.get(MISSION) or next(iter(results.values()))
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": shown.record.run_id,
        "status": shown.record.status,
        "config": config,
        "results": results,
        "speedup": main["speedup"],
    }


def archive(runs: Iterable[Shown], stream: IO[bytes]) -> None:
    """Write the runs' folders as tar.gz, the same bytes for the same files whoever packs them, whenever."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for run_id, folder, finished in sorted((s.record.run_id, s.folder, s.record.finished) for s in runs):
            _add(tar, folder, run_id, int(epoch(finished) or 0))


def _pairs(found: list[Timing]) -> dict[str, tuple[Timing, Timing | None]]:
    """Case -> our timing and the reference's: of several variants the fastest, in the mode that comes first."""
    pairs: dict[str, tuple[Timing, Timing | None]] = {}
    for timing in found:
        if timing.is_reference or timing.unit != "us":
            continue
        best = pairs.get(timing.case)
        if best is None or (timing.mode == best[0].mode and (timing.p50 or math.inf) < (best[0].p50 or 0.0)):
            pairs[timing.case] = (timing, reference_of(timing, found))
    return pairs


def _result(ours: Timing, theirs: Timing | None) -> dict[str, Any]:
    speedup = theirs.p50 / ours.p50 if theirs and theirs.p50 and ours.p50 else None
    return {"flashcore": _stats(ours), "pytorch": _stats(theirs) if theirs else None, "speedup": speedup}


def _stats(timing: Timing) -> dict[str, Any]:
    named = {key: timing.stats.get(key) for key in ("p50", "p90", "p99", "min", "max", "mean", "n")}
    return {**named, "name": timing.name, "variant": timing.variant or None, "mode": timing.mode or None}


def _add(tar: tarfile.TarFile, folder: Path, name: str, mtime: int) -> None:
    for top, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        here = Path(top)
        inside = Path(name) / here.relative_to(folder)
        _add_entry(tar, inside.as_posix(), tarfile.DIRTYPE, 0o755, mtime)
        for file in sorted(names):
            # What is no plain file was not put there by fcctl, and does not leave with an archive either.
            if stat.S_ISREG((here / file).lstat().st_mode):
                with (here / file).open("rb") as content:
                    _add_entry(tar, (inside / file).as_posix(), tarfile.REGTYPE, 0o644, mtime, content)


def _add_entry(
    tar: tarfile.TarFile, name: str, kind: bytes, mode: int, mtime: int, content: IO[bytes] | None = None
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, mtime
    info.size = os.fstat(content.fileno()).st_size if content else 0
    tar.addfile(info, content)
