"""``--publish DIR``: a run's artifacts where a person looks for them, outside the store."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.base.errors import ConflictError, NotFoundError

SUMMARY = Path("reports/summary.md")


def publish(run: Path, into: Path) -> list[Path]:
    """Copies ``artifacts/`` of the run's folder to ``into/artifacts/``, and its report to ``into/reports/summary.md``.
    Files of the same names are replaced, others stay. Returns the copies. Raises NotFoundError: there is nothing;
    ConflictError: a file is where a folder must be, or the disk refuses."""
    source = run / "artifacts"
    pairs = [(path, into / "artifacts" / path.relative_to(source)) for path in sorted(source.rglob("*"))]
    if (source / SUMMARY).is_file():
        pairs.append((source / SUMMARY, into / SUMMARY))
    pairs = [(path, copy) for path, copy in pairs if path.is_file() and not path.is_symlink()]
    if not pairs:
        raise NotFoundError("the run left no artifacts to publish", hint=f"its files: {run}")
    try:
        for path, copy in pairs:
            copy.parent.mkdir(parents=True, exist_ok=True)
            temporary = copy.with_name(f".{copy.name}.new")
            shutil.copyfile(path, temporary)
            temporary.replace(copy)
    except OSError as error:
        raise ConflictError(f"the artifacts cannot be published in {into}", cause=str(error)) from error
    return [copy for _, copy in pairs]
