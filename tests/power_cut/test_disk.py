"""The model: what may be left of operations, and that no way to write goes past it."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.power_cut.disk import BLOCK, SECTOR, Tree, materialise
from tests.power_cut.play import Done, Subject, record

OLD, NEW = b"old" * 10, b"new" * 10


class Acting(Subject):
    def __init__(self, act: Callable[[Path], object], content: bytes) -> None:
        self._act, self._content = act, content

    def prepare(self, root: Path) -> None:
        (root / "folder").mkdir()
        (root / "file").write_bytes(self._content)

    def act(self, root: Path, done: Done) -> None:
        self._act(root)
        done("acted")

    def judge(self, root: Path, done: tuple[str, ...]) -> None: ...


def left(act: Callable[[Path], object], root: Path, content: bytes = OLD) -> list[Tree]:
    """What may be on the disk once ``act`` has returned."""
    cuts = record(Acting(act, content), root / "root").cuts.values()
    return [cut.tree for cut in cuts if cut.done]


def contents(trees: list[Tree], name: str) -> set[bytes | None]:
    return {tree[name].data if name in tree else None for tree in trees}


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_what_is_written_may_be_lost_until_it_is_synced(tmp_path: Path) -> None:
    def write(root: Path) -> None:
        (root / "file").write_bytes(NEW)

    def synced(root: Path) -> None:
        write(root)
        sync(root / "file")

    (tmp_path / "a").mkdir()
    assert contents(left(write, tmp_path / "a"), "file") >= {OLD, b"", NEW[:15], bytes(30), NEW}
    (tmp_path / "b").mkdir()
    assert contents(left(synced, tmp_path / "b"), "file") == {NEW}


def test_a_name_may_be_there_without_its_contents(tmp_path: Path) -> None:
    def renamed(root: Path) -> None:
        (root / "new").write_bytes(NEW)
        os.replace(root / "new", root / "file")

    assert contents(left(renamed, tmp_path), "file") >= {OLD, b"", NEW}


def test_a_name_may_be_lost_until_its_folder_is_synced(tmp_path: Path) -> None:
    def made(root: Path) -> None:
        (root / "folder/new").write_bytes(NEW)
        sync(root / "folder/new")

    def kept(root: Path) -> None:
        made(root)
        sync(root / "folder")

    (tmp_path / "a").mkdir()
    assert contents(left(made, tmp_path / "a"), "folder/new") == {None, NEW}
    (tmp_path / "b").mkdir()
    assert contents(left(kept, tmp_path / "b"), "folder/new") == {NEW}


def test_a_folders_own_name_needs_the_folder_above(tmp_path: Path) -> None:
    def made(root: Path) -> None:
        (root / "one").mkdir()
        (root / "one/two").write_bytes(NEW)
        sync(root / "one/two")
        sync(root / "one")

    assert contents(left(made, tmp_path), "one/two") == {None, NEW}


def test_names_of_one_folder_change_in_order_and_a_rename_happens_whole(tmp_path: Path) -> None:
    def act(root: Path) -> None:
        (root / "first").touch()
        (root / "second").touch()
        os.rename(root / "file", root / "folder/moved")

    found = {tuple(sorted(tree)) for tree in left(act, tmp_path)}
    assert found == {
        ("file", "folder"),
        ("file", "first", "folder"),
        ("file", "first", "folder", "second"),
        ("first", "folder", "folder/moved", "second"),
    }


def test_an_unlink_may_not_have_happened(tmp_path: Path) -> None:
    assert contents(left(lambda root: (root / "file").unlink(), tmp_path), "file") == {None, OLD}


def test_long_writes_are_torn_at_sectors_and_may_lack_a_block(tmp_path: Path) -> None:
    long = b"x" * (3 * BLOCK)
    found = contents(left(lambda root: (root / "file").write_bytes(long), tmp_path, b""), "file")
    assert found >= {b"", long[:SECTOR], bytes(BLOCK) + long[BLOCK:], bytes(3 * BLOCK), long}


def mapped(root: Path) -> None:
    with (root / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:] = NEW


def zipped(root: Path) -> None:
    with zipfile.ZipFile(root / "a.zip", "w") as archive:
        archive.writestr("file", NEW)
    (root / "file").unlink()
    zipfile.ZipFile(root / "a.zip").extract("file", root)


def by_descriptor(root: Path) -> None:
    handle, name = tempfile.mkstemp(dir=root)
    with os.fdopen(handle, "wb") as file:
        file.write(NEW)
    shutil.move(name, root / "file")


def positioned(root: Path) -> None:
    fd = os.open(root / "file", os.O_WRONLY)
    os.pwrite(fd, NEW, 0)
    os.close(fd)


def copied(root: Path) -> None:
    (root / "folder/new").write_bytes(NEW)
    sync(root / "folder/new")
    shutil.copyfile(root / "folder/new", root / "file")


@pytest.mark.parametrize("write", [mapped, zipped, by_descriptor, positioned, copied])
def test_every_way_to_write_is_seen(write: Callable[[Path], None], tmp_path: Path) -> None:
    assert contents(left(write, tmp_path), "file") >= {OLD, NEW}


def test_a_state_is_made_as_it_was(tmp_path: Path) -> None:
    def act(root: Path) -> None:
        os.link(root / "file", root / "folder/same")
        os.symlink("../file", root / "folder/link")
        (root / "file").chmod(0o600)
        sync(root)
        sync(root / "folder")

    (state,) = left(act, tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    materialise(state, again)
    assert (again / "file").samefile(again / "folder/same")
    assert (again / "folder/link").read_bytes() == OLD
    assert (again / "file").stat().st_mode & 0o777 == 0o600
