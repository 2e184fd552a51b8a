"""A process that has everything imported and forks an fcctl for each command: two at once, and to be killed anywhere.

``python -m tests.support.zygote`` reads one JSON object a line (:class:`Zygote` writes them) and answers with one JSON
line per fcctl that has ended. The time of its fcctls is that of an emulator, which moves when they sleep.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.forked import PYTHON_PATH

REPOSITORY = Path(__file__).resolve().parents[2]
REAL_S = 0.03


class RemoteClock:
    """The time of an emulator in another process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _advance(self, seconds: float) -> float:
        body = json.dumps({"advance": seconds}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/emulator/clock", body, headers)
        with urllib.request.urlopen(request, timeout=240) as answer:
            return float(json.load(answer)["now"])

    def now(self) -> float:
        return self._advance(0.0)

    def monotonic(self) -> float:
        return self._advance(0.0)

    def elapsed(self) -> float:
        return self._advance(0.0)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, REAL_S))
        self._advance(max(0.0, seconds - REAL_S))


class Zygote:
    """For tests: start it once, then :meth:`start` commands and :meth:`wait` for them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            cwd=REPOSITORY,
        )
        self._ended: dict[int, int] = {}
        self._began = 0

    def start(self, *args: str, url: str, cwd: Path, env: dict[str, str], kill: tuple[str, int] | None = None) -> int:
        """The command's number. ``kill``: SIGKILL itself ``before`` or ``after`` its N-th journal line."""
        self._began += 1
        out = str(cwd.parent / f"command-{self._began}.txt")
        asked = {"number": self._began, "argv": args, "url": url, "cwd": str(cwd), "env": env, "kill": kill, "out": out}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return self._began

    def end(self, number: int) -> None:
        """SIGKILL, now."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"end": number}).encode() + b"\n")
        self._process.stdin.flush()

    def wait(self, number: int) -> int:
        """Its exit code; negative for a signal, as :mod:`subprocess` has it."""
        assert self._process.stdout is not None
        while number not in self._ended:
            answer = json.loads(self._process.stdout.readline())
            self._ended[answer["number"]] = answer["code"]
        return self._ended[number]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


# --------------------------------------------------------------------------------------------------- the process itself
def _serve() -> None:
    import google.cloud.compute_v1  # noqa: F401 - what takes long
    import paramiko  # noqa: F401
    import pydantic  # noqa: F401

    import orchestrator.cli.verbs.hosts
    import orchestrator.cli.verbs.run
    import orchestrator.hosts.audit
    import orchestrator.providers.gcp.cloud
    import orchestrator.runs.machine.run_lease  # noqa: F401

    running: dict[int, int] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.01 if running else None)
        if ready:
            block = os.read(0, 65536)
            if not block:
                return
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                if "end" in asked:
                    _end(running, asked["end"])
                    continue
                pid = os.fork()
                if pid == 0:
                    _be_fcctl(asked)
                running[pid] = asked["number"]
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"number": running.pop(pid), "code": code}), flush=True)


def _end(running: dict[int, int], number: int) -> None:
    for pid, other in running.items():
        if other == number:
            os.kill(pid, signal.SIGKILL)


def _be_fcctl(asked: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    import orchestrator.app
    from orchestrator.cli.main import main
    from tests.support import killed_fcctl

    clock = RemoteClock(asked["url"])
    orchestrator.app.SystemClock = lambda: clock  # type: ignore[assignment,misc]
    if asked["kill"]:
        killed_fcctl.arm(*asked["kill"])
    code = 1
    try:
        code = main(asked["argv"])
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
