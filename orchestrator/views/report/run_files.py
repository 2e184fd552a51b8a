"""A run's own files about itself: its report, and a manifest of what is there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.base.errors import FcctlError
from orchestrator.base.sanitize import clean
from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord
from orchestrator.views.report import markdown
from orchestrator.views.report.build import build

MANIFEST, SUMMARY = "artifacts/manifest.yaml", "artifacts/reports/summary.md"


def files(record: RunRecord, folder: Path, settings: Mapping[str, str]) -> dict[str, bytes]:
    """The manifest and the report, as bytes by their path within the run.

    Raises:
        FcctlError: they cannot be made of what is in ``folder``.
    """
    try:
        summary = markdown.render(build([Shown(record, folder, load(record, folder))])).encode()
        return {SUMMARY: summary, MANIFEST: manifest(record, folder, settings, {SUMMARY: summary})}
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise FcctlError(
            "the report could not be made", cause=f"{type(error).__name__}: {error}", hint="fcctl results show"
        ) from error


def manifest(record: RunRecord, folder: Path, settings: Mapping[str, str], more: Mapping[str, bytes]) -> bytes:
    """``manifest.yaml``: what the run was, of which source and where, and each of its artifacts with its sha256."""
    import yaml

    content = {
        "schema_version": 1,
        "run_id": record.run_id,
        "job": record.job,
        "title": record.title,
        "target": record.target,
        "status": record.status,
        "started": record.started,
        "finished": record.finished,
        "source": record.source.model_dump(mode="json"),
        "settings": dict(settings),
        "host": _plain(record.host),
        "steps": [{"id": s.id, "status": s.status, "seconds": round(s.duration_s, 1)} for s in record.steps],
        "cost_usd": record.cost.usd,
        "files": sorted([*_artifacts(folder), *map(_entry, more, more.values())], key=lambda e: str(e["path"])),
    }
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _artifacts(folder: Path) -> Iterator[dict[str, Any]]:
    root = folder / "artifacts"
    for path in sorted(root.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and name not in (MANIFEST, SUMMARY):
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            yield {"path": name.removeprefix("artifacts/"), "bytes": path.stat().st_size, "sha256": digest}


def _entry(name: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"path": name.removeprefix("artifacts/"), "bytes": len(content), "sha256": digest}


def _plain(value: Any) -> Any:
    """What a host said, without control characters."""
    if isinstance(value, Mapping):
        return {clean(k, 80): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value[:100]]
    return clean(value, 200) if isinstance(value, str) else value
