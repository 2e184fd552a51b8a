"""The workspace's source files: what a reader of them returns, and the hashes that are remembered of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fcctl_remote import wire
from fcctl_remote.wire import TreeEntry
from orchestrator.base.errors import ConflictError
from orchestrator.base.files import write_atomic

_LARGE_BYTES = 50_000_000


@dataclass(frozen=True)
class Source:
    """The workspace's files as they are now: what git tracks, and what is untracked but not ignored."""

    root: Path
    entries: tuple[wire.TreeEntry, ...]
    tree_sha256: str
    git_commit: str | None
    dirty: bool
    skipped: tuple[str, ...] = ()  # paths left out (sockets, links that leave the workspace), each worth a warning

    @property
    def large(self) -> dict[str, str]:
        """Path -> what to say of it, for each file of 50 MB or more."""
        return {
            entry.path: f"{entry.path} has {entry.size / 1e6:.0f} MB; to leave it out, add it to .gitignore"
            for entry in self.entries
            if entry.size >= _LARGE_BYTES
        }


class SourceReader(Protocol):
    def read(self, root: Path) -> Source: ...


#: A file changed this recently may change again within one tick of its time stamps, so its hash is not remembered.
RACY_NS = 100_000_000
READ_TRIES = 3
CHUNK = 1024 * 1024

_Facts = tuple[int, int, int, int]  # size, mtime_ns, ctime_ns, inode


class SourceHashes:
    """One workspace's hashes, in ``<cache folder>/source-<hash of the root>.json``. Disposable."""

    def __init__(self, root: Path, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
        self._file = folder / f"source-{name}.json"
        self._known: dict[str, list[int | str]] = {}
        self._dirty = False
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self._file.read_bytes())
            if isinstance(known, dict):
                self._known = known

    def entry(self, path: str, full: Path, facts: os.stat_result) -> TreeEntry:
        """The entry of a regular file. Raises ConflictError if it keeps changing, OSError if it cannot be read."""
        row = self._known.get(path)
        if isinstance(row, list) and len(row) == 5 and tuple(row[:4]) == _facts(facts):
            digest = str(row[4])
        else:
            digest, facts = _digest(path, full)
            self._remember(path, facts, digest)
        return TreeEntry(path, digest, facts.st_size, executable=bool(facts.st_mode & 0o100))

    @staticmethod
    def link(path: str, target: str) -> TreeEntry:
        text = os.fsencode(target)
        return TreeEntry(path, hashlib.sha256(text).hexdigest(), len(text), link=target)

    def save(self, paths: set[str]) -> None:
        """Keep what belongs to ``paths``. Failing to write costs only time."""
        stale = self._known.keys() - paths
        if not (self._dirty or stale):
            return
        rows = {path: row for path, row in self._known.items() if path not in stale}
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            data = json.dumps(rows, separators=(",", ":")).encode()
            write_atomic(self._file.parent, self._file.name, data, mode=0o600, durable=False)

    def _remember(self, path: str, facts: os.stat_result, digest: str) -> None:
        if time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) < RACY_NS:
            if self._known.pop(path, None) is not None:
                self._dirty = True
            return
        self._known[path] = [*_facts(facts), digest]
        self._dirty = True


def _facts(facts: os.stat_result) -> _Facts:
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def _digest(path: str, full: Path) -> tuple[str, os.stat_result]:
    for _ in range(READ_TRIES):
        fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                break
            digest, size = hashlib.sha256(), 0
            while block := file.read(CHUNK):
                digest.update(block)
                size += len(block)
                if size > before.st_size:
                    break  # growing as fast as it is read
            after = os.fstat(file.fileno())
        if _facts(before) == _facts(after) and size == after.st_size:
            return digest.hexdigest(), after
    raise ConflictError(
        f"'{path}' changed while fcctl read it", hint="stop the program that writes it, or add it to .gitignore"
    )
