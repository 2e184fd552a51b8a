"""A controller in miniature: talks to a real agent over a pipe, in a home of its own with a tmux server of its own."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from fcctl_remote import wire
from fcctl_remote.base import files, tree
from fcctl_remote.run import state as runs
from tests.support import host_program, scratch
from tests.support.living import is_running, started_with
from tests.support.scripts import script
from tests.support.waiting import GUARD_S, wait_for

#: Limits of time for what must have begun before they are over: the next where a busy machine took longer, seconds.
LIMITS_S = (3.0, 15.0, 60.0)


@functools.cache
def host_python() -> str:
    """The oldest supported Python where there is one, else this one."""
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python"))
    for candidate in (*pyenv, shutil.which("python3.8")):
        if candidate and _works(candidate):
            return str(candidate)
    return sys.executable


def _works(python: str | Path) -> bool:
    return subprocess.run([python, "-c", "pass"], check=False, stderr=subprocess.DEVNULL).returncode == 0


class CallFailed(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.error = error


class Host:
    """A host: its home folder, its environment, its agents."""

    facts: ClassVar[bytes | None] = None

    def __init__(self, base: Path, root: Path | None = None) -> None:
        self.base = base
        self.home = base.parent / "account"  # the same for all tests, so that facts about the machine hold
        self.root = root or base / "fcctl"
        self.home.mkdir(exist_ok=True)
        host_program.unpacked_in(self.root)
        built = host_program.built()
        self.runner = self.root / "runner" / f"{built.sha256}.pyz"
        self.tmux_dir = Path(tempfile.mkdtemp(prefix="t", dir=scratch.folder()))  # short: a socket lies below it
        self.env = {
            "HOME": str(self.home),
            "TMUX_TMPDIR": str(self.tmux_dir),
            "PATH": os.environ["PATH"],
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
        }
        self.agents: list[Agent] = []
        # What the host program once found out about this machine holds for every home of the test session.
        if Host.facts is not None:
            (self.root / "facts.json").write_bytes(Host.facts)

    def agent(self, **env: str) -> Agent:
        agent = Agent(self, {**self.env, **env})
        self.agents.append(agent)
        return agent

    def run_dir(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def log(self, run_id: str, step: str) -> str:
        """What a step has printed so far."""
        path = self.run_dir(run_id) / "steps" / step / "log.txt"
        return path.read_text() if path.exists() else ""

    def supervisor(self, run_id: str) -> int:
        """The number of the process that carries out the run."""
        return int((self.run_dir(run_id) / "supervisor.lock").read_text())

    def settle(self, run_id: str) -> None:
        """Write the outcome ``lost``, as another process does that settles the run."""
        plan = wire.decode(wire.RunPlan, json.loads((self.run_dir(run_id) / "plan.json").read_bytes()))
        ended = wire.encode(runs.outcome(plan, "lost", "settled by another"))
        files.write_atomic(str(self.run_dir(run_id) / "outcome.json"), files.to_json(ended))

    def tmux(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["tmux", *words], check=False, env=self.env, capture_output=True, text=True)

    def wait_until_closed(self, run_id: str) -> None:
        """Wait until the windows of a run that has ended are closed: supervisor and telemetry write no more."""
        wait_for(lambda: self.tmux("has-session", "-t", f"=fcctl-{run_id}").returncode != 0)

    def program(self, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run another command of the host program to its end."""
        argv = [host_python(), str(self.runner), *words]
        return subprocess.run(argv, check=False, env=self.env, capture_output=True, **options)

    def processes(self, marker: str) -> list[int]:
        """Living processes with ``marker`` in their environment."""
        return [pid for pid, _ in started_with(marker) if is_running(pid)]

    def close(self) -> None:
        for agent in self.agents:
            agent.close()
        with contextlib.suppress(FileNotFoundError):
            Host.facts = (self.root / "facts.json").read_bytes()
        deadline = time.monotonic() + GUARD_S
        while left := self.processes(f"TMUX_TMPDIR={self.tmux_dir}"):  # again, for what one of them has just started
            assert time.monotonic() < deadline, f"{left} outlive SIGKILL"
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, 9)
            time.sleep(0.01)
        shutil.rmtree(self.tmux_dir, ignore_errors=True)  # a client of tmux that was just starting may make a socket


class Agent:
    """One connection."""

    def __init__(self, host: Host, env: dict[str, str]) -> None:
        self.host = host
        self.stderr = (host.base / f"agent-{secrets.token_hex(3)}.err").open("wb+")
        self.process = subprocess.Popen(
            [host_python(), str(host.runner), "agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.stderr, env=env,
        )  # fmt: skip
        self.ticks = 0
        self._next = 0
        assert self.process.stdout.readline().decode().strip() == wire.READY

    def send(self, method: str, params: dict[str, Any] | None = None, blob: bytes = b"") -> int:
        self._next += 1
        frame = {"id": self._next, "method": method, "params": params or {}}
        if blob:
            frame["blob"] = len(blob)
        self.process.stdin.write(json.dumps(frame).encode() + b"\n" + blob)
        self.process.stdin.flush()
        return self._next

    def receive(self) -> tuple[dict[str, Any], bytes]:
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise EOFError("the agent is gone")
            frame = json.loads(line)
            if "tick" in frame:
                self.ticks += 1
                continue
            return frame, self.process.stdout.read(frame.get("blob", 0))

    def call(self, method: str, params: dict[str, Any] | None = None, blob: bytes = b"") -> Any:
        return self.call_blob(method, params, blob)[0]

    def call_blob(self, method: str, params: dict[str, Any] | None = None, blob: bytes = b"") -> tuple[Any, bytes]:
        number = self.send(method, params, blob)
        frame, data = self.receive()
        assert frame["id"] == number
        if "error" in frame:
            raise CallFailed(frame["error"])
        return frame["result"], data

    # ---------------------------------------------------------------------------------------- whole errands
    def snapshot(self, run_id: str, contents: dict[str, bytes], workspace: str = "ws") -> wire.Snapshot:
        """Put ``contents`` into the tree as rsync would, and take the run's snapshot of it."""
        entries = [wire.TreeEntry(path, hashlib.sha256(data).hexdigest(), len(data)) for path, data in contents.items()]
        blob = json.dumps(wire.encode(entries)).encode()
        diff = self.call("tree_diff", {"workspace": workspace}, blob)
        for path in diff["changed"]:
            target = Path(diff["root"]) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[path])
        digest = tree.tree_digest(entries)
        params = {"workspace": workspace, "run_id": run_id, "tree_sha256": digest}
        return wire.decode(wire.Snapshot, self.call("snapshot", params, blob))

    def submit(self, *steps: wire.StepSpec, contents: dict[str, bytes] | None = None, **fields: Any) -> str:
        """Submit a run of ``steps``; its id."""
        run_id = fields.pop("run_id", None) or new_run_id()
        made = self.snapshot(run_id, contents or {"hello.txt": b"hello\n"})
        plan = plan_of(run_id, *steps, tree_sha256=made.tree_sha256, **fields)
        self.call("submit", {"plan": wire.encode(plan)})
        return run_id

    def started(self, *steps: wire.StepSpec, **fields: Any) -> str:
        """Submit a run of ``steps`` and wait for the first to start; its id."""
        run_id = self.submit(*steps, **fields)
        self.wait_for(run_id, "step_started")
        return run_id

    def passed(self, *steps: wire.StepSpec, **fields: Any) -> str:
        """Submit a run of ``steps``, which passes; its id."""
        run_id = self.submit(*steps, **fields)
        outcome = self.outcome(run_id)
        assert outcome.status == "passed", outcome
        return run_id

    def outcome(self, run_id: str) -> wire.Outcome:
        """Watch the run to its end."""
        self.follow(run_id)
        return wire.decode(wire.Outcome, json.loads((self.host.run_dir(run_id) / "outcome.json").read_bytes()))

    def follow(self, run_id: str, log_step: str | None = None) -> tuple[list[wire.Event], bytes]:
        """All events, and one step's log, until the run has ended and nothing is left to read."""
        events: list[wire.Event] = []
        log = bytearray()
        offset = 0
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            request = wire.WatchRequest(run_id, offset, log_step, len(log), wait_s=5.0)
            result, blob = self.call_blob("watch", wire.encode(request))
            reply = wire.decode(wire.WatchReply, result)
            events += reply.events
            offset = reply.events_offset
            log += blob
            if reply.summary.status in wire.RUN_ENDINGS and not reply.events and len(log) >= reply.log_size:
                return events, bytes(log)
        raise AssertionError(f"run {run_id} has not ended: {result['summary']}")

    def wait_for(self, run_id: str, kind: str) -> wire.Event:
        """Wait until an event of this kind was written."""
        offset = 0
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            request = wire.WatchRequest(run_id, offset, wait_s=1.0)
            reply = wire.decode(wire.WatchReply, self.call("watch", wire.encode(request)))
            offset = reply.events_offset
            for event in reply.events:
                if event.type == kind:
                    return event
        raise AssertionError(f"no event {kind}")

    def close(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.stderr.close()


def new_run_id(job: str = "job") -> str:
    return f"20261121t081530z-{job}-box-{secrets.token_hex(3)}"


def plan_of(run_id: str, *steps: wire.StepSpec, **fields: Any) -> wire.RunPlan:
    given = {"job": "job", "target": "box", "workspace": "ws", "tree_sha256": "0" * 64, "created": 1.0, **fields}
    return wire.RunPlan(run_id=run_id, steps=list(steps), **given)


def step(name: str, script: str, **fields: Any) -> wire.StepSpec:
    return wire.StepSpec(id=name, run=script, **fields)


def prepared(agent: Agent, *steps: wire.StepSpec, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A run that is not submitted yet: its id and its plan; the host has its snapshot."""
    run_id = new_run_id()
    made = agent.snapshot(run_id, {"a": b"1"})
    return run_id, wire.encode(plan_of(run_id, *steps, tree_sha256=made.tree_sha256, **fields))


def with_tmux(host: Host, body: str) -> Agent:
    """An agent whose tmux is a script."""
    tmux = script(host.base / "bin/tmux", body)
    return host.agent(PATH=f"{tmux.parent}:{host.env['PATH']}")
