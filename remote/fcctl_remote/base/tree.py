"""The source's tree on the host: what differs from a manifest, and the verified snapshot that a run works in."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator

from fcctl_remote.base import files
from fcctl_remote.record import Any
from fcctl_remote.wire import Refusal, Snapshot, TreeDiff, TreeEntry

#: Files up to this size are copied into a snapshot, larger ones hard-linked.
COPY_BYTES = 1024 * 1024
#: A file changed this recently may change again within one tick of its time stamps, so its hash is not remembered.
RACY_NS = 50_000_000
MAX_PATH_BYTES = 1024
#: Folders below a longer path are deleted from further up, bytes: no system call takes a path of more than 4096.
LONG_PATH = 1024


def tree_digest(entries: Iterable[TreeEntry]) -> str:
    """The identity of a source tree: sha256 over ``path NUL mode NUL sha256 NL`` of each entry, sorted by path's bytes.

    ``mode`` is ``x`` for an executable file, ``l`` for a symbolic link (whose sha256 is that of its target's text),
    ``-`` for any other file.
    """
    rows = sorted(
        (entry.path.encode("utf-8", "surrogateescape"), entry) for entry in {e.path: e for e in entries}.values()
    )
    digest = hashlib.sha256()
    for path, entry in rows:
        mode = b"l" if entry.link is not None else b"x" if entry.executable else b"-"
        digest.update(path + b"\0" + mode + b"\0" + entry.sha256.encode("ascii") + b"\n")
    return digest.hexdigest()


def path_fault(path: str) -> str | None:
    """Why ``path`` may not be used as a relative path on this host; None if it may."""
    if not path or path.startswith("/"):
        return "not a relative path"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "has an empty, '.' or '..' component"
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        return "has a control character"
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(encoded) > MAX_PATH_BYTES or any(len(part) > 255 for part in encoded.split(b"/")):
        return "is too long"
    return None


def parse_manifest(blob: bytes) -> list[TreeEntry]:
    """The entries of a call's blob. Raises Refusal: bad_request, naming the first path that must not be written."""
    try:
        rows = json.loads(blob)
        entries = [_entry(row) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refusal("bad_request", "the manifest is not a list of files: %s" % error) from None
    holders = {entry.path for entry in entries}
    if len(holders) != len(entries):
        raise Refusal("bad_request", "the manifest contains a path twice")
    for entry in entries:
        _refuse_bad(entry, holders)
    return entries


def _entry(row: dict[str, Any]) -> TreeEntry:
    link = row.get("link")
    return TreeEntry(
        path=str(row["path"]),
        sha256=str(row["sha256"]),
        size=int(row["size"]),
        executable=bool(row.get("executable", False)),
        link=None if link is None else str(link),
    )


def _above(path: str) -> Iterator[str]:
    """The folders that ``path`` is in, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def _refuse_bad(entry: TreeEntry, holders: set[str]) -> None:
    fault = path_fault(entry.path)
    if fault is None:
        fault = next(("is below %r, which is a file" % above for above in _above(entry.path) if above in holders), None)
    if fault is None and (len(entry.sha256) != 64 or not entry.sha256.isalnum() or not entry.sha256.isascii()):
        fault = "has no sha256"
    if fault is None and entry.link is not None and (not entry.link or "\0" in entry.link):
        fault = "is a link without a target"
    if fault is not None:
        raise Refusal("bad_request", "refused path %r: %s" % (entry.path[:200], fault))


class Index:
    """Remembers hashes of a tree's files, so that only changed files are read again. Disposable."""

    def __init__(self, path: str) -> None:
        self.path = path
        rows = files.read_object(path) or {}
        #: Path -> size, mtime and ctime (ns) when the content had the hash, and that hash.
        self.known: dict[str, list[Any]] = {p: row for p, row in rows.items() if isinstance(row, list)}
        self.dirty = False

    def sha256(self, path: str, facts: os.stat_result) -> str | None:
        row = self.known.get(path, [])
        return row[3] if row[:3] == _times(facts) and len(row) == 4 else None

    def remember(self, path: str, facts: os.stat_result, sha256: str) -> None:
        if time.time_ns() - max(facts.st_ctime_ns, facts.st_mtime_ns) < RACY_NS:
            return
        self.known[path] = [*_times(facts), sha256]
        self.dirty = True

    def evict(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.dirty = self.known.pop(path, None) is not None or self.dirty

    def save(self) -> None:
        """A full disk is no reason to fail: the next call reads the files again."""
        if not self.dirty:
            return
        try:
            files.write_atomic(self.path, files.to_json(self.known), durable=False)
        except OSError as error:
            if not files.is_disk_full(error):
                raise


def _times(facts: os.stat_result) -> list[int]:
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def write_new(path: str, data: bytes, executable: bool) -> None:
    """Write a file that must not be there yet, with one of the two modes that a source's files have."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with files.closing(os.open(path, flags, 0o755 if executable else 0o644)) as fd:
        files.write_all(fd, data)


def hash_file(path: str) -> str:
    with files.closing(files.open_plain(path)) as fd:
        return hash_open(fd)[0]


def hash_open(fd: int) -> tuple[str, int]:
    """The sha256 of the bytes that an open file has now, and how many; it may grow meanwhile."""
    digest, size = hashlib.sha256(), os.fstat(fd).st_size
    left = size
    while left > 0 and (block := os.read(fd, min(left, 262144))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest(), size - left


class Tree:
    """One workspace's tree and its index. Hold the workspace's lock while using it."""

    def __init__(self, root: str, index_path: str) -> None:
        self.root = root
        self.index = Index(index_path)

    def diff(self, entries: list[TreeEntry]) -> TreeDiff:
        """Delete what the manifest lacks; name the entries whose content the tree does not have."""
        files.own_folder(self.root)
        paths = {entry.path for entry in entries}
        folders = {folder for path in paths for folder in _above(path)}
        removed = _prune_folder(self.root, "", paths, folders)
        changed = [entry.path for entry in entries if not self._holds(entry)]
        self.index.evict(self.index.known.keys() - paths)
        self.index.save()
        return TreeDiff(changed=changed, removed=removed, root=self.root)

    def _holds(self, entry: TreeEntry) -> bool:
        full = os.path.join(self.root, entry.path)
        try:
            facts = os.lstat(full)
            if entry.link is not None:
                return stat.S_ISLNK(facts.st_mode) and os.readlink(full) == entry.link
            if not stat.S_ISREG(facts.st_mode) or facts.st_size != entry.size:
                return False
            digest = self.index.sha256(entry.path, facts)
            if digest is None:
                digest = hash_file(full)
                self.index.remember(entry.path, facts, digest)
        except OSError:
            return False  # absent, or unreadable: either way it is to be sent
        if digest != entry.sha256:
            return False
        return self._mode_is(full, facts, entry)

    def _mode_is(self, full: str, facts: os.stat_result, entry: TreeEntry) -> bool:
        """Set the executable bit here: the content is right, so nothing has to travel for it."""
        if bool(facts.st_mode & 0o100) == entry.executable:
            return True
        if facts.st_nlink > 1:
            return False  # shared with a snapshot, which must keep its own mode
        os.chmod(full, 0o755 if entry.executable else 0o644)
        self.index.evict([entry.path])
        return True

    def snapshot(self, entries: list[TreeEntry], tree_sha256: str, destination: str) -> Snapshot:
        """Copy the tree to ``destination``, checking each file's content against the manifest. Raises Refusal:
        tree_mismatch with ``data["paths"]``; those are forgotten, so the next diff names them."""
        if tree_digest(entries) != tree_sha256:
            raise Refusal("bad_request", "the manifest differs from the sha256 that was sent with it")
        partial = destination + ".partial"
        remove_tree(partial)
        os.mkdir(partial, 0o755)
        wrong = []
        made = {""}
        for entry in entries:
            _make_parents(partial, entry.path, made)
            if not self._place(entry, os.path.join(partial, entry.path)):
                wrong.append(entry.path)
        if wrong:
            self.index.evict(wrong)
            self.index.save()
            remove_tree(partial)
            raise Refusal(
                "tree_mismatch",
                "files on the host differ from the source: %d, the first is %r" % (len(wrong), wrong[0]),
                "send the source again",
                {"paths": wrong},
            )
        self.index.save()
        os.rename(partial, destination)
        return Snapshot(tree_sha256, len(entries), sum(entry.size for entry in entries), destination)

    def _place(self, entry: TreeEntry, target: str) -> bool:
        source = os.path.join(self.root, entry.path)
        try:
            if entry.link is not None:
                os.symlink(entry.link, target)
                return os.readlink(source) == entry.link
            facts = os.lstat(source)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size != entry.size:
                return False
            if entry.size <= COPY_BYTES:
                return self._copy(entry, source, target, facts)
            return self._link(entry, source, target, facts)
        except OSError as error:
            if files.is_disk_full(error):
                raise
            return False

    def _copy(self, entry: TreeEntry, source: str, target: str, facts: os.stat_result) -> bool:
        with files.closing(files.open_plain(source)) as fd:
            content = os.read(fd, entry.size + 1)
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            return False
        self.index.remember(entry.path, facts, entry.sha256)
        write_new(target, content, entry.executable)
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        return True

    def _link(self, entry: TreeEntry, source: str, target: str, facts: os.stat_result) -> bool:
        digest = self.index.sha256(entry.path, facts)
        if (digest or hash_file(source)) != entry.sha256 or bool(facts.st_mode & 0o100) != entry.executable:
            return False
        try:
            os.link(source, target)
        except OSError:
            import shutil

            shutil.copy2(source, target)  # another file system, or too many links
        # Linking changes the inode's ctime; without this each run would read its large files again.
        self.index.remember(entry.path, os.lstat(source), entry.sha256)
        return True


def _prune_folder(folder: str, prefix: str, paths: set[str], folders: set[str]) -> int:
    removed = 0
    with os.scandir(folder) as scan:
        children = list(scan)
    for child in children:
        path = prefix + child.name
        if child.is_dir(follow_symlinks=False):
            if path in folders:
                removed += _prune_folder(child.path, path + "/", paths, folders)
            else:
                removed += remove_tree(child.path)
        elif path not in paths:
            os.unlink(child.path)
            removed += 1
    return removed


def _make_parents(root: str, path: str, made: set[str]) -> None:
    parent = path.rpartition("/")[0]
    if parent not in made:
        os.makedirs(os.path.join(root, parent), exist_ok=True)
        made.add(parent)


def remove_tree(folder: str) -> int:
    """Delete a folder and all below it, also folders a step made read-only. Returns how many files there were.

    However deep it is: what has a long path is moved up first. Anything else that stands there, a link too, is deleted.
    """
    if not os.path.lexists(folder):
        return 0
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        os.unlink(folder)
        return 1
    deep: list[str] = []
    removed = _empty(folder, folder, deep)
    while deep:
        path = deep.pop()
        removed += _empty(path, folder, deep)
        os.rmdir(path)
    os.rmdir(folder)
    return removed


def _empty(folder: str, top: str, deep: list[str]) -> int:
    """Delete what is in ``folder``; what has a long path goes to ``top`` and is named in ``deep``."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(folder, 0o700)
    with os.scandir(folder) as scan:
        children = list(scan)
    removed = 0
    for child in children:
        if not child.is_dir(follow_symlinks=False):
            os.unlink(child.path)
            removed += 1
        elif len(os.fsencode(child.path)) > LONG_PATH and folder != top:
            deep.append(os.path.join(top, ".deep-" + os.urandom(8).hex()))
            os.rename(child.path, deep[-1])
        else:
            removed += _empty(child.path, top, deep)
            os.rmdir(child.path)
    return removed
