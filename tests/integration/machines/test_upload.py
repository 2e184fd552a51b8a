"""The source on its way to the host: rsync over the one connection, calls where that cannot be, links that break."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.base.tree import tree_digest
from orchestrator.base.errors import HostUnusable, LinkLost
from orchestrator.machines.connect import framing, rsync
from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.reconnect import Connector
from orchestrator.machines.interfaces import HostSession, Transfer
from orchestrator.machines.targets import Target
from orchestrator.runs.git_source import GitSource
from orchestrator.runs.source import Source
from tests.support import openrsync
from tests.support.link import LinkProxy
from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd
from tests.support.tiers import sampled
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("private_home")

RUN = "20261121t081530z-phase1-l4-3fa9c1"
ODD = ["-rf", "--delete", "quo'te \"d", "tab and  blanks", "ünïcödé-日本", "#comment", ";semi", "$(touch x)", "a:b",
       "*?[x]"]  # fmt: skip
Connect = Callable[[Target], AgentSession]


@pytest.fixture(params=["rsync or calls", "inline"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(framing, "INLINE_FILES", 100 if request.param == "inline" else -1)
    return str(request.param)


@pytest.fixture(autouse=True)
def none_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of these are about rsync and several calls, however small the files."""
    monkeypatch.setattr(framing, "INLINE_FILES", -1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(20):
        (folder / "deep" / f"f{number}.cu").write_text(f"{number}\n" * number)
    (folder / "empty").write_text("")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "deep" / "er" / "link").symlink_to("../f1.cu")
    for name in ODD:
        (folder / name).write_text(name)
        (folder / "deep" / name).write_text(name * 2)
    return folder


def sync(session: HostSession, root: Path) -> tuple[Source, Transfer]:
    source = GitSource().read(root)
    diff = session.tree_diff("ws", source.entries)
    heard: list[int] = []
    transfer = session.send("ws", diff.root, root, diff.changed, heard.append)
    assert not diff.changed or transfer.how in ("rsync", "none") or sum(heard) >= transfer.bytes
    again = session.tree_diff("ws", source.entries)
    assert again.changed == []
    return source, transfer


def sync_and_check(session: HostSession, root: Path) -> Transfer:
    """Bring the source over and hold the snapshot, which the host verifies by content, against it."""
    source, transfer = sync(session, root)
    session.forget(RUN)
    snapshot = session.snapshot("ws", RUN, source.entries, source.tree_sha256)
    assert snapshot.files == len(source.entries)
    there = Path(snapshot.path)
    found = {str(path.relative_to(there)): path for path in there.rglob("*") if path.is_symlink() or not path.is_dir()}
    assert set(found) == {entry.path for entry in source.entries}
    for entry in source.entries:
        mine, theirs = root / entry.path, found[entry.path]
        if entry.link is not None:
            assert os.readlink(theirs) == entry.link
        else:
            assert theirs.read_bytes() == mine.read_bytes()
            assert bool(theirs.stat().st_mode & stat.S_IXUSR) == entry.executable
    return transfer


def test_all_arrives_and_once(session: AgentSession, source: Path, both_ways: str) -> None:
    os.utime(source / "run.sh", (1_700_000_000, 1_700_000_000))
    transfer = sync_and_check(session, source)
    assert transfer.how == ("inline" if both_ways == "inline" else "rsync")
    assert transfer.files == len(GitSource().read(source).entries)
    there = Path(session.hello.root) / "trees" / "ws"
    assert (there / "run.sh").stat().st_mtime == 1_700_000_000
    modes = {name: stat.S_IMODE((there / name).stat().st_mode) for name in ("run.sh", "empty")}
    assert modes == {"run.sh": 0o755, "empty": 0o644}
    assert sync_and_check(session, source).how == "none"


@pytest.mark.usefixtures("both_ways")
def test_only_what_changed_travels(session: AgentSession, source: Path) -> None:
    sync(session, source)
    (source / "deep" / "f3.cu").write_text("new")
    (source / "deep" / "f4.cu").unlink()
    (source / "added").write_text("more")
    transfer = sync_and_check(session, source)
    assert (transfer.files, transfer.bytes) == (2, 7)


@pytest.mark.usefixtures("both_ways")
def test_same_size_and_time_but_other_content(session: AgentSession, source: Path) -> None:
    file = source / "deep" / "f3.cu"
    sync(session, source)
    facts = file.stat()
    file.write_bytes(b"x" * facts.st_size)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert sync_and_check(session, source).files == 1


@pytest.mark.usefixtures("both_ways")
def test_file_becomes_folder_and_folder_becomes_file(session: AgentSession, source: Path) -> None:
    sync(session, source)
    (source / "empty").unlink()
    (source / "empty").mkdir()
    (source / "empty" / "inner").write_text("x")
    shutil.rmtree(source / "deep" / "er")
    (source / "deep" / "er").write_text("now a file")
    (source / "run.sh").unlink()
    (source / "run.sh").symlink_to("deep")
    sync_and_check(session, source)


def test_large_file_and_its_change(session: AgentSession, source: Path) -> None:
    (source / "big.bin").write_bytes(os.urandom(6_000_000))
    sync(session, source)
    with (source / "big.bin").open("r+b") as big:
        big.seek(3_000_000)
        big.write(b"changed")
    assert sync_and_check(session, source).files == 1


def test_descriptors_that_do_not_block(
    session: AgentSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS's openrsync gives its remote shell such descriptors. Large in both directions: what the host has of a file
    comes back as checksums."""
    program = str(openrsync.install(tmp_path / "rsync"))
    monkeypatch.setattr(rsync, "local_program", lambda: program)
    large = os.urandom(8_000_000)
    (source / "big.bin").write_bytes(large)
    assert sync_and_check(session, source).how == "rsync"
    for number in range(0, len(large), 400_000):
        large = large[:number] + b"changed" + large[number + 7 :]
    (source / "big.bin").write_bytes(large)
    assert sync_and_check(session, source).how == "rsync"


@pytest.mark.parametrize("end", ["here", "there"])
def test_calls_where_rsync_is_missing(
    session: AgentSession, source: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end == "there":
        session.hello.tools["rsync"] = None
    else:
        monkeypatch.setattr(rsync, "local_program", lambda: None)
    os.link(source / "deep" / "f5.cu", source / "hard link")
    (source / ("long" * 60)).write_text("a name of 240 bytes")
    transfer = sync_and_check(session, source)
    assert transfer.how == "calls"
    (source / "deep" / "f3.cu").write_text("new")
    (source / "empty").unlink()
    (source / "empty").mkdir()
    (source / "empty" / "inner").write_text("x")
    assert sync_and_check(session, source).files == 2


def test_calls_after_an_rsync_that_fails(session: AgentSession, source: Path, tmp_path: Path) -> None:
    broken = script(tmp_path / "rsync", "echo I speak another protocol >&2\nexit 2")
    if session._transport.remote:
        session.hello.tools["rsync"] = str(broken)
    else:
        (source / "vanishing").write_text("x")
        diff = session.tree_diff("ws", GitSource().read(source).entries)
        (source / "vanishing").unlink()  # rsync ends with 23 or 24; calls pass over it
        assert session.send("ws", diff.root, source, diff.changed).how == "calls"
    sync_and_check(session, source)
    (source / "empty").write_text("no more")
    again = sync_and_check(session, source)
    assert again.how == "calls"
    assert "rsync" in again.rsync_error


@pytest.mark.parametrize("look_s", [0.001, 30.0], ids=["the watcher is first", "rsync is first"])
def test_calls_where_the_connection_has_no_second_session(
    sshd: LoopbackSshd, connect: Connect, source: Path, look_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connect(sshd.target())

    def refused(_script: str) -> object:
        raise HostUnusable("no more sessions", cause="MaxSessions")

    monkeypatch.setattr(session._transport, "run", refused)
    monkeypatch.setattr(rsync, "LOOK_S", look_s)
    transfer = sync_and_check(session, source)
    assert (transfer.how, transfer.rsync_error) == ("calls", "no more sessions: MaxSessions")


def test_names_with_line_breaks_travel_too(session: AgentSession, source: Path, tmp_path: Path) -> None:
    """The agent declines them, so they are left out before; rsync's list of names would carry them all the same."""
    (source / "two\nlines").write_text("x")
    destination = tmp_path / "destination"
    destination.mkdir()
    session.send("ws", str(destination), source, ["two\nlines", "-rf"])
    assert sorted(path.name for path in destination.iterdir()) == ["-rf", "two\nlines"]
    assert "two\nlines" not in [entry.path for entry in GitSource().read(source).entries]


def test_hostile_tree_root_stays_on_the_host(
    sshd: LoopbackSshd, connect: Connect, source: Path, tmp_path: Path
) -> None:
    session = connect(sshd.target())
    odd = tmp_path / "$(touch owned) 'x' -e sh"
    odd.mkdir()
    session.send("ws", str(odd), source, ["empty", "run.sh"])
    assert sorted(path.name for path in odd.iterdir()) == ["empty", "run.sh"]


@pytest.mark.full
def test_ten_thousand_files(session: AgentSession, tmp_path: Path) -> None:
    root = tmp_path / "many"
    for number in range(10_000):
        (root / f"d{number % 40}").mkdir(parents=True, exist_ok=True)
        (root / f"d{number % 40}" / f"f{number}").write_text(f"{number}")
    began = time.monotonic()
    source, transfer = sync(session, root)
    assert (transfer.files, transfer.how) == (10_000, "rsync")
    assert len(source.entries) == 10_000
    assert tree_digest(source.entries) == source.tree_sha256
    assert time.monotonic() - began < 120


# ------------------------------------------------------------------------------------------------ links that break
def big_source(tmp_path: Path, size: int = 30_000_000) -> Path:
    root = tmp_path / "bigsrc"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(size))
    (root / "small").write_text("s")
    return root


def cut(link: LinkProxy) -> None:
    link.cut_after(5_000_000, "up")


def stall(link: LinkProxy) -> None:
    link.bytes_per_s = 4_000_000

    def later() -> None:
        while link.up < 3_000_000:
            time.sleep(0.01)
        link.stall()

    threading.Thread(target=later, daemon=True).start()


@pytest.mark.parametrize("how", ["rsync", "calls"])
@pytest.mark.parametrize("trouble", sampled([cut, stall], keep=[cut]))
def test_link_breaks_during_the_upload(
    sshd: LoopbackSshd, connect: Connect, link: LinkProxy, tmp_path: Path, trouble: Callable[[LinkProxy], None],
    how: str,
) -> None:  # fmt: skip
    root = big_source(tmp_path)
    # A cut is noticed at once, a silence after this time; nothing else may take as long.
    target = sshd.target(port=link.port, link_timeout_s=5.0 if trouble is stall else 30.0)
    session = connect(target)
    if how == "calls":
        session.hello.tools["rsync"] = None
    diff = session.tree_diff("ws", GitSource().read(root).entries)
    trouble(link)
    began = time.monotonic()
    with pytest.raises(LinkLost):
        session.send("ws", diff.root, root, diff.changed)
    assert time.monotonic() - began < 100
    with pytest.raises(LinkLost):
        session.status()
    session.close()
    link.resume()
    link.bytes_per_s = None
    sync_and_check(connect(target), root)


@pytest.mark.full
def test_link_falls_silent_during_a_call(sshd: LoopbackSshd, connect: Connect, link: LinkProxy) -> None:
    session = connect(sshd.target(port=link.port, link_timeout_s=5.0))
    assert session.status() == []
    link.stall()
    began = time.monotonic()
    with pytest.raises(LinkLost, match="sent nothing more"):
        session.status()
    assert 4.5 < time.monotonic() - began < 60


@pytest.mark.full
def test_link_takes_nothing_more_during_a_large_call(sshd: LoopbackSshd, connect: Connect, link: LinkProxy) -> None:
    session = connect(sshd.target(port=link.port, link_timeout_s=5.0))
    entries = [wire.TreeEntry(f"{'d' * 100}{n}", "ab" * 32, 1) for n in range(40_000)]  # 9 MB, more than any buffer
    link.stall()
    began = time.monotonic()
    with pytest.raises(LinkLost):
        session.tree_diff("ws", entries)
    assert time.monotonic() - began < 100


def test_link_is_reset_and_sshd_restarts(sshd: LoopbackSshd, connect: Connect, link: LinkProxy) -> None:
    for target, trouble in ((sshd.target(port=link.port), link.reset), (sshd.target(), sshd.restart)):
        session = connect(target)
        trouble()
        with pytest.raises(LinkLost):
            session.status()
    assert connect(sshd.target()).status() == []


@pytest.mark.full
def test_slow_link_is_no_dead_link(sshd: LoopbackSshd, connect: Connect, link: LinkProxy, tmp_path: Path) -> None:
    link.delay_s = 0.05
    session = connect(sshd.target(port=link.port, link_timeout_s=30.0))
    link.bytes_per_s = 4_000_000
    sync_and_check(session, big_source(tmp_path, 1_000_000))


# ------------------------------------------------------------------------------------------------ the host program
def test_root_elsewhere_is_used_throughout(sshd: LoopbackSshd, connect: Connect, source: Path) -> None:
    shutil.rmtree(sshd.home / ".fcctl")
    session = connect(sshd.target(root="~/other/place"))
    assert session.hello.root == str(sshd.home / "other" / "place")
    session.hello.tools["rsync"] = None
    assert sync_and_check(session, source).how == "calls"
    assert not (sshd.home / ".fcctl").exists()


def test_disk_full_at_the_upload_of_the_runner(sshd: LoopbackSshd, tmp_path: Path) -> None:
    cat = script(tmp_path / "bin/cat", "head -c 100\necho 'cat: write error: No space left on device' >&2\nexit 1")
    (sshd.home / ".bashrc").write_text(f"PATH={cat.parent}:$PATH\n")
    shutil.rmtree(sshd.home / ".fcctl")
    with pytest.raises(HostUnusable) as caught:
        Connector().connect(sshd.target())
    assert "No space left" in (caught.value.cause or "")
    assert list((sshd.home / ".fcctl" / "runner").iterdir()) == []


def test_nothing_is_left_behind(sshd: LoopbackSshd, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = sshd.folder / "tmp"  # its own: other tests have folders beside theirs
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    session = Connector().connect(sshd.target())
    sync(session, source)
    session.close()
    wait_for(lambda: not [t.name for t in threading.enumerate() if "rsync" in t.name])
    assert list(place.iterdir()) == []
