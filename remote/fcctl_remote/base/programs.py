"""Running other programs for facts: always bounded in time and output, never raising."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from fcctl_remote.record import Any, Record

MAX_OUTPUT = 256 * 1024


class Ran(Record):
    """What came of a program. ``code`` is None if it could not be started or did not end in time."""

    code: int | None
    out: str = ""
    err: str = ""
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0


def run(
    argv: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    most_bytes: int = MAX_OUTPUT,
) -> Ran:
    """Run ``argv`` in ``/``; of each of its outputs ``most_bytes`` are kept. A program that outlives ``timeout_s`` is
    killed, and left behind if the kernel will not let it die (nvidia-smi on a hung driver)."""
    try:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            process = subprocess.Popen(
                argv, stdin=given if stdin else subprocess.DEVNULL, stdout=out, stderr=err, cwd="/",
                start_new_session=True, env=None if env is None else dict(env),
            )  # fmt: skip
            code = _wait(process, timeout_s)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read(most_bytes).decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        return Ran(None, err="%s: %s" % (argv[0], getattr(error, "strerror", None) or error))
    return Ran(code, texts[0], texts[1], timed_out=code is None)


def ask(python: str, script: str, timeout_s: float, env: Mapping[str, str]) -> tuple[dict[str, Any], Ran]:
    """The JSON object that ``script`` prints last, run by another Python; empty if it prints none.

    Its working folder is no part of that Python's installation, so an empty entry of sys.path is left out."""
    done = run([python, "-c", "import sys\nsys.path[:] = [p for p in sys.path if p]\n" + script], timeout_s, env)
    try:
        answer = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    return answer if isinstance(answer, dict) else {}, done


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    deadline = time.monotonic() + 1.0
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if process.returncode is None:
        process.returncode = -signal.SIGKILL  # or its finaliser would warn of a process that nobody can end
    return None


def which(program: str, env: Mapping[str, str]) -> str | None:
    """Where ``env``'s PATH has an executable ``program``."""
    return shutil.which(program, path=env.get("PATH") or os.defpath)
