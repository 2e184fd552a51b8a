"""The recorder sees what programs do to files, in whichever way, and a replay of its log leaves the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.power_cut.disk import Disk
from tests.power_cut.recorded import Log, Record, build, replaying, why_not

SHELL = """
echo hello > a; echo more >> a; mv a b; mkdir -p d/e; ln -s b l; ln b h; cp b d/c; rm h; printf x | tee -a b
(echo one; echo two) > "f g"; chmod 700 d/c; rm -r d/e; mv d moved; cd moved; echo relative > ../r; cat ../b ../r > both
"""
PYTHON = """
import os, shutil, tempfile
folder = os.open(".", os.O_RDONLY)
with open("p", "wb") as stream: stream.write(b"0123456789" * 1000)
shutil.copy("p", "q")
fd = os.open("p", os.O_RDWR)
os.pwrite(fd, b"middle", 4000); os.writev(fd, [b"be", b"gin"]); os.ftruncate(fd, 5000); os.fsync(fd)
os.fchmod(fd, 0o640)
os.posix_fallocate(fd, 0, 6000)
os.copy_file_range(fd, os.open("copied", os.O_WRONLY | os.O_CREAT), 100, 2)
os.sendfile(os.open("sent", os.O_WRONLY | os.O_CREAT), fd, 0, 100)
os.rename("q", "Q", src_dir_fd=folder, dst_dir_fd=folder); os.mkdir("n", dir_fd=folder); os.rmdir("n")
unnamed = open("u", "wb"); unnamed.write(b"u"); unnamed.flush(); os.unlink("u"); unnamed.write(b"more"); unnamed.close()
tempfile.TemporaryFile(dir=".").write(b"never had a name")
os.fsync(folder)
"""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    if reason := why_not():
        pytest.skip(reason)
    (tmp_path / "root").mkdir()
    (tmp_path / "before").mkdir()
    build(tmp_path / "recorder.so")
    return Log(tmp_path / "log", tmp_path / "root")


def record(log: Log, folder: Path, *argv: str) -> list[Record]:
    env = {**os.environ, **log.environment(folder / "recorder.so")}
    subprocess.run(argv, cwd=folder / "root", env=env, check=True, stdout=subprocess.DEVNULL)
    return list(log)


def looks(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {name: (node.mode, node.data) for name, node in next(Disk(folder).crash_states(4, "")).items()}


@pytest.mark.parametrize("argv", [("bash", "-ec", SHELL), (sys.executable, "-c", PYTHON)], ids=["shell", "python"])
def test_a_replay_leaves_what_the_programs_left(argv: tuple[str, ...], log: Log, tmp_path: Path) -> None:
    records = record(log, tmp_path, *argv)
    with replaying(tmp_path / "before") as replay:
        replay.apply_all(records)
    assert looks(tmp_path / "before") == looks(tmp_path / "root")
    assert len(looks(tmp_path / "before")) >= 4


def test_what_was_not_synced_may_be_lost(log: Log, tmp_path: Path) -> None:
    script = (
        "import os; f = open('f', 'w'); f.write('x'); f.flush(); os.fsync(f); os.fsync(os.open('.', 0)); os.mkdir('d')"
    )
    records = record(log, tmp_path, sys.executable, "-c", script)
    with replaying(tmp_path / "before") as replay:
        replay.apply_all(records)
        names = {tuple(state) for state in replay.disk.crash_states(10, "")}
        assert names == {("f",), ("d", "f")}
    (tmp_path / "again").mkdir()
    with replaying(tmp_path / "again", ignore="^f$") as replay:
        replay.apply_all(records)
        assert b"" in {state["f"].data for state in replay.disk.crash_states(10, "")}


def test_what_two_processes_append_is_in_one_order(log: Log, tmp_path: Path) -> None:
    write = "import os, sys; fd = os.open('shared', os.O_CREAT | os.O_WRONLY | os.O_APPEND)\n"
    write += "for at in range(200): os.write(fd, f'{sys.argv[1]} {at} '.encode())"
    both = f'for name in a b; do {sys.executable} -c "$0" $name & done; wait'
    records = record(log, tmp_path, "bash", "-c", both, write)
    with replaying(tmp_path / "before") as replay:
        replay.apply_all(records)
    assert (tmp_path / "before/shared").read_bytes() == (tmp_path / "root/shared").read_bytes()
    assert sum(one.kind == "W" for one in records) == 400
