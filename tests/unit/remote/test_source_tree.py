from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcctl_remote import wire
from fcctl_remote.base import tree
from fcctl_remote.wire import Refusal

SHA = "0" * 64


def _entry(path: str, data: bytes = b"x", **fields: object) -> wire.TreeEntry:
    return wire.TreeEntry(path, hashlib.sha256(data).hexdigest(), len(data), **fields)  # type: ignore[arg-type]


@pytest.fixture
def here(tmp_path: Path) -> tree.Tree:
    return _tree(tmp_path)


def _tree(base: Path) -> tree.Tree:
    (base / "tree").mkdir(exist_ok=True)
    return tree.Tree(str(base / "tree"), str(base / "index.json"))


def _age(path: Path) -> None:
    """Let a file's time stamps be older than the tick in which it could change unnoticed."""
    time.sleep(tree.RACY_NS / 1e9 + 0.01)
    assert path.exists()


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd",
     "../x", "a/../../x", "a//b", "./a", "a/.", "", "a\nb", "a\0b", "a\x1bb", "x" * 256, "a/" * 600 + "b",
     "bad\udcff"],
)  # fmt: skip
def test_paths_that_must_not_be_written_are_refused(path: str) -> None:
    with pytest.raises(Refusal) as caught:
        tree.parse_manifest(json.dumps([{"path": path, "sha256": SHA, "size": 1}]).encode())
    assert caught.value.error.code == "bad_request"


@pytest.mark.parametrize(
    "rows",
    [
        [{"path": "a", "sha256": SHA, "size": 1}, {"path": "a/b", "sha256": SHA, "size": 1}],
        [{"path": "a", "sha256": SHA, "size": 1, "link": "/etc"}, {"path": "a/b/c", "sha256": SHA, "size": 1}],
        [{"path": "a", "sha256": SHA, "size": 1}] * 2,
        [{"path": "a", "sha256": "short", "size": 1}],
        [{"path": "a", "sha256": SHA, "size": "many"}],
        [{"path": "a"}],
        {"path": "a"},
        [3],
    ],
)
def test_manifests_that_make_no_sense_are_refused(rows: object) -> None:
    with pytest.raises(Refusal):
        tree.parse_manifest(json.dumps(rows).encode())


@given(st.lists(st.text(max_size=8), max_size=6))
def test_a_path_that_passes_stays_below_its_root(parts: list[str]) -> None:
    path = "/".join(parts)
    if tree.path_fault(path) is None:
        assert os.path.normpath(os.path.join("/root/of/tree", path)) == "/root/of/tree/" + path


def test_diff_drops_what_the_manifest_lacks_and_names_what_differs(here: tree.Tree) -> None:
    root = Path(here.root)
    for path, data in {"same": b"1", "other": b"2", "old/gone": b"3", "was_file": b"4"}.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(data)
    (root / "link").symlink_to("same")
    entries = [
        _entry("same", b"1"), _entry("other", b"9"), _entry("was_file/now", b"5"), _entry("new", b"6"),
        _entry("link", b"same", link="same"), _entry("link2", b"x", link="x"),
    ]  # fmt: skip
    diff = here.diff(entries)
    assert diff.changed == ["other", "was_file/now", "new", "link2"]
    assert diff.removed == 2
    assert sorted(os.listdir(root)) == ["link", "other", "same"]


def test_only_changed_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    for name in "abc":
        (tmp_path / "tree" / name).write_bytes(b"1")
    _age(tmp_path / "tree/c")
    entries = [_entry(name, b"1") for name in "abc"]
    assert _tree(tmp_path).diff(entries).changed == []
    read: list[str] = []
    real = tree.hash_file
    monkeypatch.setattr(tree, "hash_file", lambda path: read.append(Path(path).name) or real(path))
    assert _tree(tmp_path).diff(entries).changed == []
    assert read == []
    facts = (tmp_path / "tree/b").stat()
    (tmp_path / "tree/b").write_bytes(b"2")
    os.utime(tmp_path / "tree/b", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert _tree(tmp_path).diff(entries).changed == ["b"]
    assert read == ["b"]


def test_a_damaged_index_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_bytes(b"1")
    for damage in (b"", b"{", b"[1]", b'{"a": [1]}', b'{"a": [1, 2, 3, 4, 5]}'):
        (tmp_path / "index.json").write_bytes(damage)
        assert _tree(tmp_path).diff([_entry("a", b"1")]).changed == []


def test_the_executable_bit_is_set_without_sending_the_file(here: tree.Tree) -> None:
    place = Path(here.root, "a")
    place.write_bytes(b"1")
    assert here.diff([_entry("a", b"1", executable=True)]).changed == []
    assert place.stat().st_mode & 0o777 == 0o755
    os.link(place, Path(here.root).parent / "snapshot")
    assert here.diff([_entry("a", b"1")]).changed == ["a"]  # a snapshot shares it, and keeps its mode


def test_snapshot_copies_small_files_and_links_large_ones(here: tree.Tree, tmp_path: Path) -> None:
    large = b"L" * (tree.COPY_BYTES + 1)
    root = Path(here.root)
    (root / "large").write_bytes(large)
    (root / "small").write_bytes(b"s")
    os.utime(root / "small", (1_000_000, 1_000_000))
    (root / "link").symlink_to("small")
    entries = [_entry("large", large), _entry("small", b"s"), _entry("link", b"small", link="small")]
    made = here.snapshot(entries, tree.tree_digest(entries), str(tmp_path / "src"))
    assert (made.files, made.bytes) == (3, len(large) + 1 + 5)
    assert (tmp_path / "src/large").stat().st_ino == (root / "large").stat().st_ino
    assert (tmp_path / "src/small").stat().st_ino != (root / "small").stat().st_ino
    assert (tmp_path / "src/small").stat().st_mtime == 1_000_000
    assert os.readlink(tmp_path / "src/link") == "small"


def test_snapshot_refuses_a_tree_that_differs_and_leaves_nothing(here: tree.Tree, tmp_path: Path) -> None:
    root = Path(here.root)
    (root / "good").write_bytes(b"1")
    (root / "bad").write_bytes(b"2")
    (root / "evil").symlink_to("/etc/passwd")
    entries = [_entry("good", b"1"), _entry("bad", b"9"), _entry("absent", b"3"), _entry("evil", b"4")]
    with pytest.raises(Refusal) as caught:
        here.snapshot(entries, tree.tree_digest(entries), str(tmp_path / "src"))
    assert caught.value.error.code == "tree_mismatch"
    assert caught.value.error.data["paths"] == ["bad", "absent", "evil"]
    assert sorted(os.listdir(tmp_path)) == ["tree"]


def test_the_digest_covers_path_mode_and_content_in_any_order() -> None:
    entries = [_entry("a"), _entry("b", executable=True), _entry("c", link="x")]
    digest = tree.tree_digest(entries)
    assert tree.tree_digest(reversed(entries)) == digest
    for changed in (_entry("a2"), _entry("a", b"y"), _entry("a", executable=True), _entry("a", link="x")):
        assert tree.tree_digest([changed, *entries[1:]]) != digest


def test_read_only_folders_are_removed_too(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"x")
    (tmp_path / "a/b").chmod(0o500)
    (tmp_path / "a").chmod(0o500)
    assert tree.remove_tree(str(tmp_path / "a")) == 1
    assert not (tmp_path / "a").exists()
