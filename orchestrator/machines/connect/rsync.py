"""rsync over the open connection, with flags that rsync 2.6.9 (older macOS), rsync 3 and openrsync (macOS) support.

``-I``: the files were selected by content; rsync's check by size and time would skip some of them."""

from __future__ import annotations

import array
import contextlib
import functools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.errors import HostError, LinkLost
from orchestrator.machines.connect import rsync_shim
from orchestrator.machines.connect.transport import Process, Transport, command, printable

FLAGS = ("-l", "-t", "-p", "-I", "--from0", "--partial")
#: rsync gives up by itself after this much silence, seconds; the agent's ticks tell of a dead link much sooner.
TIMEOUT_S = 300
PUMP_BYTES = 256 * 1024
#: A Unix socket's path may have about 100 bytes.
MAX_SOCKET_PATH = 90
#: How often the watcher looks after the link while rsync works, seconds.
LOOK_S = 0.5

Watch = Callable[[float], None]


class RsyncFailed(Exception):
    """rsync failed although the connection is up. Never leaves this package."""


@functools.cache
def local_program() -> str | None:
    return shutil.which("rsync")


@dataclass(frozen=True)
class FileSet:
    """The files to send: ``paths`` are relative to both roots."""

    source_root: Path
    paths: Sequence[str]
    tree_root: str  # on the host


def send(
    transport: Transport, remote_program: str, files: FileSet, watch: Watch, sent: Callable[[int], None]
) -> None:  # fmt: skip
    """Sends the files to the tree; ``sent`` hears the bytes, in another thread.

    Raises RsyncFailed: with rsync's error, or because the host allows no second program on the connection; LinkLost:
    the connection broke, or ``watch`` says so."""
    program = local_program()
    if program is None:
        raise RsyncFailed("rsync is not installed on this computer")
    with _folder() as folder:
        names = folder / "names"
        # What starts with # or ; would be a comment.
        listed = (f"./{path}" if path.startswith(("#", ";")) else path for path in files.paths)
        names.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in listed))
        argv = [program, *FLAGS, f"--timeout={TIMEOUT_S}", f"--files-from={names}"]
        if not transport.remote:
            _run([*argv, "--", f"{files.source_root}/", f"{files.tree_root}/"], folder, watch)
            return
        with _Shell(transport, folder, remote_program, files.tree_root, sent) as shell:
            argv += ["-e", str(shell.program)]
            try:
                _run([*argv, "--", f"{files.source_root}/", "fcctl:./"], folder, shell.watching(watch))
            except RsyncFailed:
                shell.check()  # rsync ends too when its remote program could not be started; that error says why
                raise


def _run(argv: list[str], folder: Path, watch: Watch) -> None:
    with (folder / "errors").open("w+b") as errors:
        env = {key: value for key, value in os.environ.items() if not key.startswith("RSYNC_")}
        # A session of its own: Ctrl-C is for the controller.
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, env=env
        )
        done = threading.Event()

        def wait() -> None:
            process.wait()
            done.set()

        waiter = threading.Thread(target=wait, daemon=True, name="rsync")
        waiter.start()
        try:
            # The first moments without the watcher: a small upload is over before it would look.
            while not done.wait(LOOK_S):
                watch(0.01)
        finally:
            if process.poll() is None:
                process.kill()
            waiter.join()
        if process.returncode != 0:
            errors.seek(0)
            stderr = printable(errors.read(4096).decode(errors="replace"))
            raise RsyncFailed(stderr or f"rsync ended with exit code {process.returncode}")


class _Shell:
    """Serves the shim that rsync starts as its remote shell: opens the channel and copies the bytes."""

    def __init__(
        self, transport: Transport, folder: Path, remote_program: str, tree_root: str, sent: Callable[[int], None]
    ) -> None:
        self._sent = sent
        self._transport = transport
        self._remote_program = remote_program
        self._tree_root = tree_root
        self.program = folder / "rsh"
        where = folder / "s"
        words = shlex.join([sys.executable, "-I", "-S", rsync_shim.__file__, str(where)])
        self.program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        self.program.chmod(0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(where))
        self._listener.listen(1)
        self._process: Process | None = None
        self._failure: RsyncFailed | LinkLost | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name="rsync-shell")

    def __enter__(self) -> _Shell:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        if self._process is not None:
            self._process.close()
        self._thread.join(5)

    def check(self) -> None:
        """Raises RsyncFailed or LinkLost if the remote program could not be started."""
        if self._failure:
            raise self._failure

    def watching(self, watch: Watch) -> Watch:
        def both(seconds: float) -> None:
            self.check()
            watch(seconds)

        return both

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            shim, _ = self._listener.accept()
            with shim:
                words, incoming, outgoing = _receive(shim)
                status = self._relay(words, incoming, outgoing)
                shim.sendall(bytes([status & 0xFF]))

    def _relay(self, words: list[str], incoming: int, outgoing: int) -> int:
        """Run ``rsync --server ...`` in the tree, with rsync's own two descriptors as its input and output."""
        try:
            # rsync was told the destination is ./, so no path of the host's is ever among its words.
            script = command([self._remote_program, *words[1:]], cwd=self._tree_root)
            process = self._process = self._transport.run(script)
        except HostError as error:
            # Whether rsync or the watcher notices first, the outcome is the same: a machine without a second channel
            # gets its files by calls.
            if isinstance(error, LinkLost):
                self._failure = error
            else:
                self._failure = RsyncFailed(f"{error.message}: {error.cause}")
            os.close(incoming)
            os.close(outgoing)
            return 255
        up = threading.Thread(target=_pump_up, args=(incoming, process, self._sent), daemon=True, name="rsync-up")
        up.start()
        _pump_down(process, outgoing)
        status = process.wait(5)
        process.close()
        return 255 if status is None else status


def _receive(shim: socket.socket) -> tuple[list[str], int, int]:
    fds = array.array("i")
    data, ancillary, _, _ = shim.recvmsg(64 * 1024, socket.CMSG_LEN(2 * fds.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    while not data.endswith(b"\n"):
        more = shim.recv(64 * 1024)
        if not more:
            raise OSError("the shim ended")
        data += more
    if len(fds) != 2:
        raise OSError("no file descriptors were received")
    for descriptor in fds:
        os.set_blocking(descriptor, True)  # openrsync's do not block; its own end of the socket pair keeps its mode
    return json.loads(data), fds[0], fds[1]


def _pump_up(incoming: int, process: Process, sent: Callable[[int], None]) -> None:
    with contextlib.suppress(OSError, TimeoutError), open(incoming, "rb", buffering=0) as source:
        while data := source.read(PUMP_BYTES):
            process.write(data, TIMEOUT_S)
            sent(len(data))
    process.end_input()


def _pump_down(process: Process, outgoing: int) -> None:
    with contextlib.suppress(OSError, TimeoutError), open(outgoing, "wb", buffering=0) as sink:
        while data := process.read(PUMP_BYTES, TIMEOUT_S):
            view = memoryview(data)
            while view:
                view = view[sink.write(view) or 0 :]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A private folder with a path that fits a socket name and that rsync's ``-e`` does not split."""
    path = tempfile.mkdtemp(prefix="fcctl-")
    if len(path) > MAX_SOCKET_PATH or any(c.isspace() or c in "'\"" for c in path):
        Path(path).rmdir()
        path = tempfile.mkdtemp(prefix="fcctl-", dir="/tmp")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
