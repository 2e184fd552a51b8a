"""A few small files inside one call: what arrives, what is refused, and when rsync takes over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import HostFault
from orchestrator.machines.connect import framing as inline
from orchestrator.machines.connect.agent import AgentSession
from orchestrator.runs.git_source import GitSource
from tests.integration.machines.test_upload import RUN, source, sync_and_check

__all__ = ["source"]
pytestmark = pytest.mark.usefixtures("private_home")


def test_more_than_a_call_should_carry_goes_by_rsync(session: AgentSession, source: Path) -> None:
    sync_and_check(session, source)
    (source / "big").write_bytes(b"b" * (inline.INLINE_BYTES - 10))
    (source / "ten").write_bytes(b"t" * 10)
    assert sync_and_check(session, source).how == "inline"
    (source / "big").write_bytes(b"c" * (inline.INLINE_BYTES - 10))
    (source / "ten").write_bytes(b"u" * 11)
    assert sync_and_check(session, source).how == "rsync"
    for number in range(inline.INLINE_FILES + 1):
        (source / f"f{number}").write_text("x")
    assert sync_and_check(session, source).how == "rsync"


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


REFUSED = [
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
]


def test_what_must_not_be_written_is_refused_whole(session: AgentSession) -> None:
    good = wire.PutFile("good", 1, 0.0)
    session.tree_diff("ws", [])
    for file, blob in REFUSED:
        with pytest.raises(HostFault) as caught:
            session._put("ws", [inline.Batch([good, file], bytearray(b"g" + blob))], lambda _: None)
        assert caught.value.fault == "bad_request", file
        assert list((Path(session.hello.root) / "trees" / "ws").iterdir()) == []


def test_a_link_in_the_tree_leads_nowhere_else(session: AgentSession, source: Path, tmp_path: Path) -> None:
    """A step that swapped a folder of the tree for a link does not get files written behind it."""
    sync_and_check(session, source)
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = Path(session.hello.root) / "trees" / "ws"
    shutil.rmtree(tree / "deep")
    (tree / "deep").symlink_to(outside)
    session._put("ws", [inline.Batch([wire.PutFile("deep/f1.cu", 1, 0.0)], bytearray(b"x"))], lambda _: None)
    assert list(outside.iterdir()) == []
    assert (tree / "deep" / "f1.cu").read_bytes() == b"x"
    assert sync_and_check(session, source).how == "inline"
