"""The archive of runs: a tar whose first member, ``manifest.json``, names every file that follows, in order.

The tar is read strictly, plain files in a stream: Python's reader follows what a header says about further headers, of
any size, before anybody can look at it. Links, devices, other names, doubles and longer files are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

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


BLOCK = 512
MAX_EXTENDED = 64 * 1024
CHUNK = 1024 * 1024
_SIZE = re.compile(r"[0-9]{1,18}")
#: A number of a header as tar programs write it: Python's ``int`` also takes signs, underscores and prefixes.
_OCTAL = re.compile(rb"[0-7]{1,11}[ \0]+")


class Stream(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class TarReader:
    """Iterate over (name, size); read each member's content with :meth:`chunks` before the next.

    Raises, from every method:
        BadArchive: anything that is not a plain file with an honest header.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        extended: dict[str, str] | None = None
        while True:
            for _ in self.chunks():
                pass
            header = self._exactly(BLOCK)
            if header == bytes(BLOCK):
                return
            kind, name, size = _parse(header)
            if kind == b"x":
                if size > MAX_EXTENDED:
                    raise BadArchive("an extended tar header is too long")
                if extended is not None:
                    raise BadArchive("it has two extended tar headers in a row")
                extended = _extended(self._padded(size))
                continue
            if kind not in (b"0", b"\0"):
                raise BadArchive(f"{name!r:.200} is not a regular file")
            name = (extended or {}).get("path", name)
            size = int((extended or {}).get("size", size))
            extended = None
            self._left = size
            self._padding = -size % BLOCK
            yield name, size

    _padding = 0

    def chunks(self) -> Iterator[bytes]:
        """The content of the present member, in pieces."""
        while self._left:
            piece = self._stream.read(min(CHUNK, self._left))
            if not piece:
                raise BadArchive("it ends in the middle of a file")
            self._left -= len(piece)
            yield piece
        if self._padding:
            self._exactly(self._padding)
            self._padding = 0

    def _padded(self, size: int) -> bytes:
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        return content

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._stream.read(size - len(found))
            if not piece:
                raise BadArchive("it ends too early")
            found += piece
        return bytes(found)


def _parse(header: bytes) -> tuple[bytes, str, int]:
    """Kind, name and size from a ustar header whose checksum is right."""
    try:
        told, size = _number(header[148:156]), _number(header[124:136])
        name = header[:100].split(b"\0", 1)[0].decode()
        prefix = header[345:500].split(b"\0", 1)[0].decode() if header[257:262] == b"ustar" else ""
    except ValueError:
        raise BadArchive("a header is damaged") from None
    if told != sum(header[:148]) + 8 * 32 + sum(header[156:]):
        raise BadArchive("a header is damaged")
    return header[156:157], f"{prefix}/{name}" if prefix else name, size


def _number(field: bytes) -> int:
    if not _OCTAL.fullmatch(field):
        raise ValueError(f"{field!r} is not an octal number")
    return int(field.rstrip(b" \0"), 8)


def _extended(content: bytes) -> dict[str, str]:
    """The records of a pax header that change what a file is: its name and its size."""
    found: dict[str, str] = {}
    while content:
        length = content.partition(b" ")[0]
        if len(length) > 9 or not length.isdigit() or not len(length) + 1 < int(length) <= len(content):
            raise BadArchive("an extended header is damaged")
        record, content = content[len(length) + 1 : int(length)], content[int(length) :]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        try:
            if key in (b"path", b"size"):
                if key.decode() in found:
                    raise BadArchive("an extended header is damaged")
                found[key.decode()] = value.decode()
        except UnicodeDecodeError:
            raise BadArchive("a name is not UTF-8") from None
    if not _SIZE.fullmatch(found.get("size", "0")):
        raise BadArchive("an extended header is damaged")
    return found
