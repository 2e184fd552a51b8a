"""What a disk may hold after a power cut: names and contents that are durable, and those that only memory had.

``Disk`` compares a real folder with its own record after every operation, so that a change made in any way is seen:
through ``os``, ``open``, ``shutil`` or C. Its rules hold for ext4 (data=ordered, delayed allocation) and APFS, and are
stricter than either:

- Contents that were not synced may be lost, from the last write backwards, file by file. The last write may be there in
  part (a prefix, or its blocks without its first one), or as zeros or old bytes of the right length.
- A name (made, renamed, linked or deleted) is durable when its folder was synced. Until then it may be lost. In one
  folder names change in order. A rename between folders happens whole or not at all.
- Syncing a file does not make its name durable, nor syncing a folder its own name in the folder above.

The operations are recorded inside the test's own process (play.py), or of all processes of real commands (recorded.py).
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

SECTOR, BLOCK = 512, 4096
_os_open, _os_write = os.open, os.write


class Node(NamedTuple):
    """A file, folder or link of a crash state. ``number``: equal for two names of one file."""

    mode: int
    data: bytes
    number: int


Tree = dict[str, Node]
#: (folder, name, what it names from now on, or None)
Change = tuple[int, str, int | None]


@dataclass
class Inode:
    mode: int
    #: Contents: the durable one first, then one for each write since.
    versions: list[bytes] = field(default_factory=lambda: [b""])
    #: Of a folder: the durable names.
    names: dict[str, int] = field(default_factory=dict)


class Disk:
    """``apart``: the beginning of the names of files that look after themselves. A crash state has them as they are, or
    none of them."""

    def __init__(self, root: Path, apart: str = "index.sqlite") -> None:
        self._root, self._apart = str(root), apart
        self._inodes: dict[int, Inode] = {}
        self._numbers: dict[int, int] = {}  # of the real inodes that are reachable
        self._current: dict[int, dict[str, int]] = {}
        self._pending: list[list[Change]] = []
        self._alone: dict[str, os.stat_result] = {}
        self.observe()
        for inode in self._inodes.values():  # what was there at the beginning is durable
            del inode.versions[:-1]
        self._persist(range(len(self._pending)))

    # ------------------------------------------------------------------------------------------ what happened
    def observe(self, only: str | None = None) -> bool:
        """Whether contents or names changed since the last call. ``only``: no other known file's contents can have."""
        seen: dict[int, dict[str, int]] = {}
        reachable: dict[int, int] = {}
        self._alone = {}
        number = self._number(os.lstat(self._root), reachable)
        wrote = self._scan(self._root, "", number, seen, reachable, only)
        self._numbers = reachable
        changes: list[Change] = []
        for folder, names in seen.items():
            before = self._current.get(folder, {})
            changes += [(folder, name, None) for name in before if name not in names]
            changes += [(folder, name, number) for name, number in names.items() if before.get(name) != number]
        self._current = seen
        if changes:
            self._pending.append(changes)
        return bool(changes) or wrote

    def _scan(
        self, path: str, below: str, number: int, seen: dict[int, dict[str, int]], reachable: dict[int, int],
        only: str | None,
    ) -> bool:  # fmt: skip
        wrote, known = False, len(self._inodes)
        names = seen[number] = {}
        with os.scandir(path) as entries:
            children = sorted(entries, key=attrgetter("name"))
        for child in children:
            facts = child.stat(follow_symlinks=False)
            if child.name.startswith(self._apart):
                self._alone[below + child.name] = facts
                continue
            own = names[child.name] = self._number(facts, reachable)
            if stat.S_ISDIR(facts.st_mode):
                wrote |= self._scan(child.path, f"{below}{child.name}/", own, seen, reachable, only)
                continue
            if only not in (None, child.path) and own < known:
                continue
            inode, content = self._inodes[own], _content(child.path, facts)
            if stat.S_ISLNK(facts.st_mode):
                inode.versions = [content]  # a link is its name
            elif inode.versions[-1] != content:
                inode.versions.append(content)
                wrote = True
        return wrote

    def _number(self, facts: os.stat_result, reachable: dict[int, int]) -> int:
        known = self._numbers.get(facts.st_ino)
        if known is None or stat.S_IFMT(self._inodes[known].mode) != stat.S_IFMT(facts.st_mode):
            known = reachable.get(facts.st_ino, len(self._inodes))
            self._inodes.setdefault(known, Inode(facts.st_mode))
        self._inodes[known].mode = facts.st_mode
        reachable[facts.st_ino] = known
        return known

    def sync(self, fd: int) -> None:
        """A file's contents, or a folder's names, are durable."""
        number = self._numbers.get(os.fstat(fd).st_ino)
        if number is None:
            return
        del self._inodes[number].versions[:-1]
        own = [at for at, changes in enumerate(self._pending) if any(folder == number for folder, *_ in changes)]
        self._persist(set().union(*(self._needs(at) for at in own)))

    def _persist(self, chosen: set[int] | range) -> None:
        for at in sorted(chosen):
            for folder, name, number in self._pending[at]:
                _apply(self._inodes[folder].names, name, number)
        self._pending = [changes for at, changes in enumerate(self._pending) if at not in chosen]

    def _needs(self, at: int) -> set[int]:
        """The pending changes that are durable if this one is: itself, and earlier ones of the same folders."""
        needed, folders = {at}, {folder for folder, *_ in self._pending[at]}
        for earlier in range(at - 1, -1, -1):
            touched = {folder for folder, *_ in self._pending[earlier]}
            if touched & folders:
                needed.add(earlier)
                folders |= touched
        return needed

    # ------------------------------------------------------------------------------------------ what may be left
    def crash_states(self, most: int, seed: str) -> Iterator[Tree]:
        """What may be on the disk if the power fails now: at most ``most`` states, the same ones for a ``seed``."""
        chance = random.Random(seed)
        names = self._names_left()
        options = {n: _contents_left(i.versions) for n, i in self._inodes.items() if len(i.versions) > 1}
        newest = dict.fromkeys(options, 0)
        oldest = {number: len(contents) - 1 for number, contents in options.items()}
        choices = [(left, data) for left in (names[0], names[-1]) for data in (newest, oldest)]
        for number, contents in options.items():
            choices += [(names[0], {**newest, number: at}) for at in range(1, len(contents))]
            choices.append((names[0], {**oldest, number: 0}))
        choices += [(left, data) for left in names[1:-1] for data in (newest, oldest)]
        kept = choices[:4] + (chance.sample(choices[4:], most - 4) if len(choices) > most else choices[4:])
        for _ in range(most - len(kept) if len(options) + len(names) > 3 else 0):
            kept.append((chance.choice(names), {n: chance.randrange(len(c)) for n, c in options.items()}))
        alone = {
            name: Node(facts.st_mode, _content(f"{self._root}/{name}", facts), -facts.st_ino)
            for name, facts in self._alone.items()
        }
        for turn, (left, data) in enumerate(kept):
            tree: Tree = {}
            self._grow(0, "", left, {n: options[n][at] for n, at in data.items()}, tree)
            if turn % 2 == 0:
                tree |= {name: node for name, node in alone.items() if name.rpartition("/")[0] in (*tree, "")}
            yield tree

    def _names_left(self) -> list[frozenset[int]]:
        """Which pending changes may be durable: all of them first, none of them last."""
        count = len(self._pending)
        needs = [self._needs(at) for at in range(count)]
        found = {frozenset(range(upto)) for upto in range(count + 1)} | {frozenset(needed) for needed in needs}
        if count <= 5:
            for size in range(count + 1):
                found |= {frozenset().union(*(needs[at] for at in some)) for some in combinations(range(count), size)}
        for at in range(count):  # one is lost, and what depends on it
            found.add(frozenset(other for other in range(count) if at not in needs[other]))
        return sorted(found, key=lambda left: (-len(left), sorted(left)))

    def _grow(self, folder: int, below: str, left: frozenset[int], contents: dict[int, bytes], tree: Tree) -> None:
        names = dict(self._inodes[folder].names)
        for at in sorted(left):
            for where, name, number in self._pending[at]:
                if where == folder:
                    _apply(names, name, number)
        for name, number in sorted(names.items()):
            inode = self._inodes[number]
            tree[below + name] = Node(inode.mode, contents.get(number, inode.versions[-1]), number)
            if stat.S_ISDIR(inode.mode):
                self._grow(number, f"{below}{name}/", left, contents, tree)


def _apply(names: dict[str, int], name: str, number: int | None) -> None:
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


def _content(path: str, facts: os.stat_result) -> bytes:
    if stat.S_ISLNK(facts.st_mode):
        return os.fsencode(os.readlink(path))
    fd = _os_open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(fd, facts.st_size)
    finally:
        os.close(fd)


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes are the same from the beginning."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if one[least:middle] == other[least:middle] else (least, middle - 1)
    return least


def _contents_left(versions: list[bytes]) -> list[bytes]:
    """What an unsynced file may hold: all of it first, what is durable last."""
    durable, before, last = versions[0], versions[-2], versions[-1]
    same = _alike(before, last)
    torn: list[bytes] = []
    if len(last) > same:
        edges = {(same + len(last)) // 2, *range((same // SECTOR + 1) * SECTOR, len(last), SECTOR)}
        cuts = sorted(edge for edge in edges if same < edge < len(last))
        torn += [last[:cut] + before[cut:] for cut in {*cuts[:3], *cuts[-2:]}]
        new = len(last) - same
        torn += [last[:same] + bytes(new), last[:same] + random.Random(new).randbytes(new)]
        first = same // BLOCK * BLOCK + BLOCK
        if first < len(last):
            torn.append(durable[:same].ljust(first, b"\0")[:first] + last[first:])
    found = [last, *torn, *versions[-2:0:-1]]
    return [*(content for content in dict.fromkeys(found) if content != durable), durable]


def materialise(tree: Tree, root: Path) -> None:
    """Make the empty folder ``root`` hold ``tree``."""
    made: dict[int, str] = {}
    for name, node in tree.items():
        path = f"{root}/{name}"
        if stat.S_ISDIR(node.mode):
            os.mkdir(path)
        elif stat.S_ISLNK(node.mode):
            os.symlink(os.fsdecode(node.data), path)
        elif node.number in made:
            os.link(made[node.number], path)
        else:
            fd = _os_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            _os_write(fd, node.data)
            os.fchmod(fd, stat.S_IMODE(node.mode))
            os.close(fd)
            made[node.number] = path
