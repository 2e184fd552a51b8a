"""Ctrl-C at the question for a passphrase: the terminal echoes again afterwards."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.support.forked import FCCTL
from tests.support.sshd import LoopbackSshd, generate_key
from tests.support.workspace import Workspace

#: Makes standard input the controlling terminal, which is where passphrases are asked for, and becomes its arguments.
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def echoes(fd: int) -> bool:
    return bool(termios.tcgetattr(fd)[3] & termios.ECHO)


def read_until(fd: int, text: bytes, seconds: float = 60) -> bytes:
    os.set_blocking(fd, False)
    said, deadline = b"", time.monotonic() + seconds
    while text not in said:
        assert time.monotonic() < deadline, said
        try:
            said += os.read(fd, 4096)
        except BlockingIOError:
            time.sleep(0.01)
    return said


def test_ctrl_c_at_the_passphrase(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    locked = generate_key(tmp_path / "locked", passphrase="sesame")
    workspace = Workspace(tmp_path / "w", private_home, sshd, identity_file=str(locked))
    workspace.job("one", "steps: [{id: one, run: 'true'}]\n")
    ours, theirs = pty.openpty()
    try:
        assert echoes(theirs)
        running = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *FCCTL, "run", "one", "--on", "box"],
            cwd=workspace.root,
            env=workspace.env(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        read_until(ours, b"Passphrase of")
        assert not echoes(theirs)
        os.write(ours, b"\x03")
        assert running.wait() == 130
        assert echoes(theirs)
    finally:
        os.close(ours)
        os.close(theirs)
