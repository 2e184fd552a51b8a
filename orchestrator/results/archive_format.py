"""The archive of runs: a tar whose first member, ``manifest.json``, names every file that follows, in order.

Links, devices, other names, doubles and longer files are refused.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from orchestrator.base import run_id as run_ids
from orchestrator.base import safe_paths as paths

FORMAT, VERSION = "fcctl-runs", 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 48 * 1024 * 1024
#: The most an archive may unpack to, and by how much more than its own size.
MAX_BYTES, MAX_FILES, MAX_RATIO, FREE_BYTES = 20 * 1024**3, 200_000, 1000, 64 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadArchive(ValueError):
    """It is no archive of runs, or a hostile one; says why."""


@dataclass(frozen=True)
class Item:
    """One file: of which run, its path there, its size in bytes and its sha256."""

    run_id: str
    path: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.run_id}/{self.path}"


def manifest(items: Iterable[Item]) -> dict[str, Any]:
    """What goes first into an archive."""
    runs: dict[str, Any] = {}
    for item in items:
        files = runs.setdefault(item.run_id, {"files": []})["files"]
        files.append({"path": item.path, "size": item.size, "sha256": item.sha256})
    return {"format": FORMAT, "version": VERSION, "runs": runs}


def read_manifest(value: Any, archive_bytes: int) -> list[Item]:
    """Every file that must follow, in order. Raises BadArchive: it is no manifest, or announces what is not allowed."""
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("runs"), dict):
        raise BadArchive("its manifest was not written by fcctl")
    if value.get("version") != VERSION:
        raise BadArchive(f"it has version {value.get('version')!r:.20}; this fcctl reads version {VERSION}")
    items: list[Item] = []
    for run_id, run in value["runs"].items():
        if not run_ids.is_valid(run_id):
            raise BadArchive(f"{run_id!r:.80} is not a run id")
        items += _items_of(run_id, run)
        if len(items) > MAX_FILES:
            raise BadArchive(f"its manifest lists more than {MAX_FILES} files")
    total = sum(item.size for item in items)
    if total > MAX_BYTES:
        raise BadArchive(f"its manifest lists {total} bytes, more than {MAX_BYTES}")
    if total > FREE_BYTES + MAX_RATIO * archive_bytes:
        raise BadArchive(f"{archive_bytes} bytes that unpack to {total} bytes are not plausible")
    return items


def _items_of(run_id: str, run: Any) -> list[Item]:
    files = run.get("files") if isinstance(run, dict) else None
    if not isinstance(files, list):
        raise BadArchive(f"run {run_id} has no list of files")
    items = [_item(run_id, file) for file in files]
    taken: set[str] = set()
    for item in items:
        key = paths.folded(paths.harmless(item.path))
        if key in taken:
            raise BadArchive(f"{item.name!r:.200} is listed twice")
        taken.add(key)
    if "run.json" not in taken:
        raise BadArchive(f"run {run_id} has no run.json")
    return items


def _item(run_id: str, file: Any) -> Item:
    path, size, digest = (
        (file.get(key) for key in ("path", "size", "sha256")) if isinstance(file, dict) else (None,) * 3
    )
    if not isinstance(path, str) or paths.fault(path) not in (None, "reserved") or path.startswith(paths.UNFINISHED):
        raise BadArchive(f"the name {path!r:.200} is not allowed")
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise BadArchive(f"{path!r:.200} has no size and sha256")
    return Item(run_id, path, size, digest)


#: Bytes that the tar headers of one file may take, with what Python reads ahead.
HEADER_BYTES = 64 * 1024


class _Bounded:
    """A stream that gives at most ``left`` bytes: a tar header may announce further headers of any size."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.left = stream, HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise BadArchive("a tar header is too long")
        return piece


def members(stream: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each file of a tar; a content is to be read before the next file. Raises BadArchive:
    it is no tar, or holds anything else than plain files."""
    bounded = _Bounded(stream)
    try:
        with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]  # it only reads
            while (member := tar.next()) is not None:
                tar.members.clear()  # else it keeps them all
                content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if content is None:
                    raise BadArchive(f"{member.name!r:.200} is not a regular file")
                bounded.left = HEADER_BYTES + member.size
                yield member.name, member.size, content
    except tarfile.TarError as error:
        raise BadArchive(f"its tar is damaged: {str(error)[:200]}") from None
