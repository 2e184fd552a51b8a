"""Deletes old host programs, bundles of libraries and source trees, by age and by size.

What a process uses is locked, and stays: a program by each process that runs from it, a bundle by its step, a tree by
the call that works on it. Whatever is deleted here is sent again when it is needed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from fcctl_remote.base import files, hostfacts, tree
from fcctl_remote.base.layout import Layout

DAY_S = 86400.0
#: Programs and bundles that stay, the last used first, however old they are.
KEPT = 3
#: How long any other one stays, seconds.
PROGRAM_S, BUNDLE_S = 14 * DAY_S, DAY_S
#: How long a tree stays that nobody uses, seconds, and the most that all trees together may take, bytes.
TREE_S, TREES_BYTES = 30 * DAY_S, 10 * 1024**3
#: A tree that was used so lately stays in any case, seconds: its run may be about to begin.
LATELY_S = DAY_S
#: With less free there than this, only the trees that were used lately stay, bytes.
LOW_BYTES = 2 * 1024**3
#: How often it is looked, seconds, unless the disk is nearly full.
EVERY_S = DAY_S
_ARCHIVE = re.compile(r"([0-9a-f]{64})\.(?:pyz|zip|d)")


def mark(layout: Layout) -> str:
    """The file whose time says when it was looked last."""
    return os.path.join(layout.locks, "tidied")


def tidy(layout: Layout) -> None:
    """Delete what is old. A courtesy: what cannot be deleted stays."""
    now, is_low = time.time(), hostfacts.free_bytes(layout.root) < LOW_BYTES
    if not is_low and 0 <= now - _used(mark(layout)) < EVERY_S:
        return
    with contextlib.suppress(OSError):
        os.close(files.open_own(mark(layout), os.O_WRONLY, 0o600))
        os.utime(mark(layout))
        _old_archives(layout.runner, ".pyz", os.path.join(layout.locks, "runner-%s.lock"), now - PROGRAM_S)
        _old_archives(layout.bundles, ".zip", os.path.join(layout.bundles, "%s.zip.lock"), now - BUNDLE_S)
        _old_trees(layout, now - (LATELY_S if is_low else TREE_S), now - LATELY_S)


def _old_archives(folder: str, suffix: str, lock: str, before: float) -> None:
    """Archives by content, each unpacked beside itself: all but the last :data:`KEPT` that were used last ``before``,
    and what an interrupted transfer left."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    digests = {match.group(1) for match in map(_ARCHIVE.fullmatch, names) if match}
    by_use = sorted(((_used(os.path.join(folder, digest + suffix)), digest) for digest in digests), reverse=True)
    for used, digest in by_use[KEPT:]:
        if used < before:
            with contextlib.suppress(OSError):
                _delete_archive(os.path.join(folder, digest), suffix, lock % digest)
    for name in names:
        path = os.path.join(folder, name)
        if not _ARCHIVE.fullmatch(name) and not name.endswith(".lock") and _used(path) < time.time() - DAY_S:
            with contextlib.suppress(OSError):
                tree.remove_tree(path)


def _delete_archive(stem: str, suffix: str, lock: str) -> None:
    with files.locked_now(lock) as is_unused:
        if is_unused:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stem + suffix)
            tree.remove_tree(stem + ".d")
            os.unlink(lock)


def _old_trees(layout: Layout, before: float, lately: float) -> None:
    """Those that were used last ``before``; and of the others, but for those used ``lately``, what is too much."""
    stay = []
    for name in os.listdir(layout.trees):
        if name == os.path.basename(layout.indexes):
            continue
        with contextlib.suppress(ValueError):  # no name of ours
            used = _tree_used(layout, name)
            if used < before:
                _delete_tree(layout, name, before)
            else:
                stay.append((used, name))
    _fit(layout, sorted(stay, reverse=True), lately)


def _fit(layout: Layout, by_use: list[tuple[float, str]], lately: float) -> None:
    total = 0
    for used, name in by_use:
        total += _size(layout.tree(name))
        if total > TREES_BYTES and used < lately:
            _delete_tree(layout, name, lately)


def _delete_tree(layout: Layout, name: str, before: float) -> None:
    """Unless somebody works on it, or came back to it meanwhile."""
    with contextlib.suppress(OSError), files.locked_now(layout.tree_lock(name)) as is_unused:
        if is_unused and _tree_used(layout, name) < before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(layout.index(name))
            tree.remove_tree(layout.tree(name))


def _tree_used(layout: Layout, name: str) -> float:
    """When it was compared, or changed, last."""
    return max(map(_used, (layout.tree_lock(name), layout.index(name), layout.tree(name))))


def _size(folder: str) -> int:
    total = 0
    for _top, children in files.walk(folder):
        for child in children:
            with contextlib.suppress(OSError):
                total += child.stat(follow_symlinks=False).st_size
    return total


def _used(path: str) -> float:
    """When the file was touched last, epoch seconds; 0 if it is absent."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
