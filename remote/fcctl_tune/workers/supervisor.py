"""``python -m fcctl_tune.workers.supervisor FOLDER COMMAND..``: keeps a worker, and leaves nothing of it behind.

The command, which has what comes in as its own stdin, runs for as long as its keeper's stdin is open: whoever started
the keeper holds the other end, and however that one dies, the pipe ends. Orphans of the command come to the keeper
(Linux), so that even a daemon of a kernel's test ends with it. Standard library only and few imports: there is one of
these beside every worker.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import List

from fcctl_remote.run.process import KILL_PATIENCE_S, Signals, become_subreaper, exit_code, family, send

#: Between the worker's stdin closing and SIGKILL, seconds: it has nothing to write.
GRACE_S = 0.3
STDIN = 0
#: Tells a worker that its parent adopts orphans.
KEEPER = "FCCTL_TUNE_KEEPER"


def main(argv: List[str]) -> int:
    """``argv``: a folder that goes with whoever started us, then the command."""
    folder, command = argv[0], argv[1:]
    if become_subreaper():
        os.environ[KEEPER] = str(os.getpid())
    signals = Signals()
    signals.install()  # SIGTERM reaches every process of a step; when the worker ends is not for us to say
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    abandoned = False
    while worker.poll() is None and not abandoned:
        if signals.wait(60.0, also=STDIN):
            said = os.read(STDIN, 4096)
            abandoned = not said
            _pass_on(worker, said)
        _reap(worker.pid)
    _pass_on(worker, b"")
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(GRACE_S if abandoned else 0)
    _end_all(worker)
    if abandoned:
        shutil.rmtree(folder, ignore_errors=True)
    return exit_code(-worker.returncode if worker.returncode < 0 else worker.returncode << 8)


def _pass_on(worker: "subprocess.Popen[bytes]", said: bytes) -> None:
    """What we are told is for the worker; the end of it, too."""
    assert worker.stdin is not None  # noqa: S101
    with contextlib.suppress(OSError):
        if said:
            worker.stdin.write(said)
            worker.stdin.flush()
        else:
            worker.stdin.close()


def _reap(worker: int) -> None:
    """Forget orphans that ended here; the worker's own end is asked for elsewhere."""
    for pid in _children():
        if pid != worker:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> List[int]:
    try:
        with open("/proc/self/task/%d/children" % os.getpid(), "rb") as stream:
            return [int(word) for word in stream.read().split()]
    except (OSError, ValueError):
        return []


def _end_all(worker: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + KILL_PATIENCE_S
    while time.monotonic() < deadline:
        if worker.poll() is None:
            send(worker.pid, signal.SIGKILL, group=True)
        left = family(session=worker.pid, ancestor=os.getpid())
        for pid in left:
            send(pid, signal.SIGKILL)
        _reap(worker.pid)
        if not left and worker.poll() is not None:
            return
        time.sleep(0.01)
    worker.returncode = worker.returncode if worker.returncode is not None else -signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
