"""A few small files inside one call: what arrives, what is refused, and when rsync takes over."""

import os
import stat
from pathlib import Path

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import HostFault
from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.transfer import small_files as inline
from orchestrator.runs.source.git import GitSource

pytestmark = pytest.mark.usefixtures("private_home")

RUN = "20261121t081530z-phase1-l4-3fa9c1"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "one.cu").write_bytes(bytes(range(256)) * 10)
    (folder / "empty").write_text("")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "deep" / "er" / "link").symlink_to("../one.cu")
    for name in ("-rf", "ünïcödé-日本", "$(touch x)", "*?[x]"):
        (folder / name).write_text(name)
    return folder


def sync(session: AgentSession, root: Path) -> tuple[str, Path]:
    """How the files went, and the snapshot, which the host has held against the manifest."""
    source = GitSource().read(root)
    diff = session.tree_diff("ws", source.entries)
    transfer = session.send("ws", diff.root, root, diff.changed)
    session.forget(RUN)
    made = session.snapshot("ws", RUN, source.entries, source.tree_sha256)
    assert made.files == len(source.entries)
    return transfer.how, Path(made.path)


def test_content_mode_links_and_times_arrive(session: AgentSession, source: Path) -> None:
    os.utime(source / "deep" / "one.cu", (1_700_000_000, 1_700_000_000))
    how, there = sync(session, source)
    assert how == "inline"
    assert (there / "deep/one.cu").read_bytes() == bytes(range(256)) * 10
    assert (there / "deep/one.cu").stat().st_mtime == 1_700_000_000
    assert os.readlink(there / "deep/er/link") == "../one.cu"
    modes = {name: stat.S_IMODE((there / name).stat().st_mode) for name in ("run.sh", "empty")}
    assert modes == {"run.sh": 0o755, "empty": 0o644}
    assert {path.name for path in there.iterdir()} == {path.name for path in source.iterdir()}
    assert sync(session, source)[0] == "none"


def test_files_folders_and_links_change_places(session: AgentSession, source: Path) -> None:
    sync(session, source)
    (source / "empty").unlink()
    (source / "empty").mkdir()
    (source / "empty" / "inner").write_text("x")
    (source / "deep" / "er" / "link").unlink()
    (source / "deep" / "er").rmdir()
    (source / "deep" / "er").symlink_to("one.cu")
    (source / "run.sh").unlink()
    (source / "run.sh").write_text("plain")
    how, there = sync(session, source)
    assert how == "inline"
    assert (there / "empty/inner").read_text() == "x"
    assert os.readlink(there / "deep/er") == "one.cu"
    assert not (there / "run.sh").stat().st_mode & 0o111


def test_more_than_a_call_should_carry_goes_by_rsync(session: AgentSession, source: Path) -> None:
    sync(session, source)
    (source / "big").write_bytes(b"b" * (inline.INLINE_BYTES - 10))
    (source / "ten").write_bytes(b"t" * 10)
    assert sync(session, source)[0] == "inline"
    (source / "big").write_bytes(b"c" * (inline.INLINE_BYTES - 10))
    (source / "ten").write_bytes(b"u" * 11)
    assert sync(session, source)[0] == "rsync"
    for number in range(inline.INLINE_FILES + 1):
        (source / f"f{number}").write_text("x")
    assert sync(session, source)[0] == "rsync"


def test_a_file_that_vanished_is_missed_by_the_snapshot(session: AgentSession, source: Path) -> None:
    found = GitSource().read(source)
    diff = session.tree_diff("ws", found.entries)
    (source / "run.sh").unlink()
    (source / "empty").unlink()
    (source / "empty").mkdir()
    assert session.send("ws", diff.root, source, diff.changed).how == "inline"
    with pytest.raises(HostFault) as caught:
        session.snapshot("ws", RUN, found.entries, found.tree_sha256)
    assert caught.value.fault == "tree_mismatch"
    assert sorted(caught.value.data["paths"]) == ["empty", "run.sh"]


@pytest.mark.parametrize(
    ("file", "blob"),
    [
        (wire.PutFile("../out", 1, 0.0), b"x"),
        (wire.PutFile("/tmp/out", 1, 0.0), b"x"),
        (wire.PutFile("a/../../out", 1, 0.0), b"x"),
        (wire.PutFile("two\nlines", 1, 0.0), b"x"),
        (wire.PutFile("", 1, 0.0), b"x"),
        (wire.PutFile("short", 2, 0.0), b"x"),
        (wire.PutFile("negative", -1, 0.0), b"x"),
        (wire.PutFile("left over", 0, 0.0), b"x"),
        (wire.PutFile("link with content", 1, 0.0, link="a"), b"x"),
        (wire.PutFile("link to nothing", 0, 0.0, link=""), b""),
    ],
)
def test_what_must_not_be_written_is_refused_whole(session: AgentSession, file: wire.PutFile, blob: bytes) -> None:
    good = wire.PutFile("good", 1, 0.0)
    session.tree_diff("ws", [])
    with pytest.raises(HostFault) as caught:
        session._put("ws", inline.SmallFileSet([good, file], b"g" + blob))
    assert caught.value.fault == "bad_request"
    assert list((Path(session.hello.root) / "trees" / "ws").iterdir()) == []


def test_a_link_in_the_tree_leads_nowhere_else(session: AgentSession, source: Path, tmp_path: Path) -> None:
    """A step that swapped a folder of the tree for a link does not get files written behind it."""
    sync(session, source)
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = Path(session.hello.root) / "trees" / "ws"
    (tree / "deep" / "one.cu").unlink()
    (tree / "deep" / "er" / "link").unlink()
    (tree / "deep" / "er").rmdir()
    (tree / "deep").rmdir()
    (tree / "deep").symlink_to(outside)
    session._put("ws", inline.SmallFileSet([wire.PutFile("deep/one.cu", 1, 0.0)], b"x"))
    assert list(outside.iterdir()) == []
    assert (tree / "deep" / "one.cu").read_bytes() == b"x"
    assert sync(session, source)[0] == "inline"
