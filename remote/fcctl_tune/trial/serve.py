"""A spec's ``serve`` command: one process that checks and times many trials, so that no trial waits for its start.

It speaks JSON lines on stdin and stdout, one reply with the same ``id`` for each request:

    {"id": 1, "op": "ready"}                      -> {"id": 1, "ok": true}, once it can take a trial
    {"id": 2, "op": "warm", "cases", "seed"}      -> {"id": 2, "ok": true}; it may leave that out
    {"id": 2, "op": "check", "params", "out", "seed", "cases"[, "final": true]}     -> {"id": 2, "ok": true}
    {"id": 3, "op": "bench", "params", "out", "case", "seed", "repeats"}            -> {.., "samples": [..]}
    {"id": 4, "op": "turns", "many": [{"params", "out"}, ..], "case", "seed", "turns"} -> {.., "per": [[..], ..]}
    refused: {"id": 3, "ok": false, "state": "wrong" | "failed" | "unavailable", "reason": ".."}

A process that dies, hangs or prints something else fails its trial. It is ended with all its children, also after any
other failed trial, which may have left something in memory; a standby takes over.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from fcctl_remote.base.text import last_lines, one_line, tail
from fcctl_remote.run.process import masked, values_in
from fcctl_tune.errors import Failed, TuneError
from fcctl_tune.trial.process import LOOK_S, TOOK, Running, described

#: Bytes of a reply.
MAX_REPLY = 4 * 1024 * 1024
#: Seconds until a process takes its first trial: torch from a cold disk is slow.
READY_S = 120.0
#: Processes in a row that do not start, before the command is given up.
MAX_STILLBORN = 3
#: Seconds from the end of a process's pipes to its own: a GPU's driver cleans up.
EXIT_S = 5.0
#: Logs that are kept: more than there are processes.
LOGS = 16
#: Seconds that a process has to end by itself.
GRACE_S = 0.2


class ServerLost(Failed):
    """The process ended or must be ended; ``state`` is crashed or hung. Any other Failed is its own reply."""


class Process:
    """One process of the command.

    ``warm``: with what, and for how many seconds, it may warm up; a standby does not use the GPU.
    """

    def __init__(
        self, command: str, env: Mapping[str, str], cwd: str, log: str, warm: Optional[Tuple[Mapping[str, Any], float]]
    ) -> None:
        """Raises: OSError."""
        self._running = Running(command, env, cwd, log, pipes=True)
        self._secrets = values_in(env)
        stdin, stdout = self._running.popen.stdin, self._running.popen.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018
        self._in, self._out = stdin.fileno(), stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._numbers = itertools.count(1)
        self._received = b""
        self._stillborn: Optional[ServerLost] = None
        #: Requests before its first trial, and the seconds of each.
        self._pending: List[Tuple[int, float]] = []
        try:
            self._pending.append((self._say("ready"), READY_S))
            if warm is not None:
                self._pending.append((self._say("warm", **warm[0]), warm[1]))
        except ServerLost as lost:  # it has ended already
            self._stillborn = lost

    @property
    def ended(self) -> bool:
        return self._running.ended

    def ready(self) -> None:
        """Wait until it can take a trial. Raises: ServerLost."""
        if self._stillborn is not None:
            raise self._stillborn
        while self._pending:
            self._reply(*self._pending.pop(0))  # any reply shows that it runs

    def ask(self, op: str, timeout_s: float, **what: Any) -> Dict[str, Any]:
        """The reply to one request. Raises: ServerLost, if it is none; Failed, if it refuses."""
        self.ready()
        reply = self._reply(self._say(op, **what), timeout_s)
        if reply.get("ok") is True:
            return reply
        state, reason = str(reply.get("state")), str(reply.get("reason") or "the server gave no reason")
        if state not in ("wrong", "failed", "unavailable"):
            state, reason = "failed", "the server replied %s" % json.dumps(reply)
        raise Failed(state if state != "failed" else "crashed" if op == "check" else "bench_failed", reason)

    def _say(self, op: str, **what: Any) -> int:
        number = next(self._numbers)
        line = json.dumps({"id": number, "op": op, **what}).encode() + b"\n"
        deadline = time.monotonic() + READY_S
        while line:
            try:
                line = line[os.write(self._in, line) :]
            except BlockingIOError:  # the pipe is full
                if time.monotonic() > deadline:
                    raise ServerLost("hung", "the server does not read its requests") from None
                self._running.nap(0.02)
            except OSError:
                raise self._gone() from None
        return number

    def _reply(self, number: int, timeout_s: float) -> Dict[str, Any]:
        """Raises: ServerLost."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            excess = self._running.excess()
            if excess is not None:
                raise ServerLost("crashed", "the server " + TOOK[excess])
            left = deadline - time.monotonic()
            if left <= 0:
                raise ServerLost("hung", "no answer within %g s" % timeout_s)
            if self._running.nap(min(LOOK_S, left), also=self._out) or self._running.ended:
                self._receive()
        line, _, self._received = self._received.partition(b"\n")
        line = masked(line, self._secrets)
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict) or reply.get("id") != number:
            text = one_line(line.decode("utf-8", "replace"), 200)
            raise ServerLost("crashed", "the server printed something that is not a reply: %s" % text)
        return reply

    def _receive(self) -> None:
        try:
            data = os.read(self._out, 65536)
        except BlockingIOError:
            if self._running.ended:  # and a child of it holds the pipe
                raise self._gone() from None
            return
        if not data:
            raise self._gone()
        self._received += data
        if len(self._received) > MAX_REPLY:
            raise ServerLost("crashed", "the server printed too much")

    def _gone(self) -> ServerLost:
        deadline = time.monotonic() + EXIT_S
        while not self._running.ended and time.monotonic() < deadline:  # it closed its pipes first
            self._running.nap(deadline - time.monotonic())
        how = described(self._running.exit_code) if self._running.ended else "the server closed its output"
        last_output = last_lines(tail(self._running.log, 4096), lines=2)
        return ServerLost("crashed", one_line("%s: %s" % (how, last_output) if last_output else how))

    def end(self, kill: bool = True) -> None:
        """End it with all its children; unless ``kill``, it has :data:`GRACE_S` to end by itself."""
        if not kill and self._running.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._running.popen.stdin.close()
            deadline = time.monotonic() + GRACE_S
            while not self.ended and time.monotonic() < deadline:
                self._running.nap(deadline - time.monotonic())
        self._running.end(0.0)


@dataclass
class Server:
    """The process that serves, and standbys. The first one warms up, so that no trial's time has the GPU's start."""

    command: str
    env: Mapping[str, str]
    cwd: str
    folder: str  # for logs
    warm: Optional[Tuple[Mapping[str, Any], float]] = None  # with what, and how long that may take
    standbys: int = 1
    _waiting: List[Process] = field(default_factory=list)
    _serving: Optional[Process] = None
    _started: int = 0
    _number: int = field(default_factory=itertools.count().__next__)  # of those in this process

    def ask(self, op: str, timeout_s: float, **what: Any) -> Dict[str, Any]:
        """One request; after a failure the next goes to another process. Raises Failed: as :meth:`Process.ask`;
        TuneError: the command does not start."""
        process = self._come_up()
        if op != "turns":  # which has the machine to itself
            self.stand_by(self.standbys)
        try:
            return process.ask(op, timeout_s, **what)
        except Failed:
            self.drop()
            raise

    def drop(self) -> None:
        """End the process that serves; the standby is next."""
        if self._serving is not None:
            serving, self._serving = self._serving, None
            serving.end()

    def _come_up(self) -> Process:
        """The process that serves; a standby or a new one if there is none."""
        reasons: List[str] = []
        while self._serving is None:
            process = self._waiting.pop(0) if self._waiting else self._start()
            try:
                process.ready()
            except ServerLost as lost:
                process.end()
                reasons.append(lost.reason)
                if len(reasons) >= MAX_STILLBORN:
                    hint = 'run it by hand: %s   then type {"id": 1, "op": "ready"}' % self.command
                    raise TuneError("serve: the command does not start: %s" % reasons[-1], hint) from None
                continue
            self._serving = process
        return self._serving

    def stand_by(self, count: int) -> None:
        """Have so many standbys, which load meanwhile."""
        for process in [p for p in self._waiting if p.ended]:
            self._waiting.remove(process)
            process.end()
        while len(self._waiting) < count:
            self._waiting.append(self._start())

    def _start(self) -> Process:
        self._started += 1
        log = os.path.join(self.folder, "serve-%d-%d-%d.log" % (os.getpid(), self._number, self._started % LOGS))
        return Process(self.command, self.env, self.cwd, log, self.warm if self._started == 1 else None)

    def close(self) -> None:
        if self._serving is not None:
            self._serving.end(kill=False)
            self._serving = None
        while self._waiting:
            self._waiting.pop().end()
