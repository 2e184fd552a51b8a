"""The workers of one machine: one that builds, and one for each GPU.

Each is a process below a ``workers.supervisor``, which this process holds by a pipe: they end with it, however it
ends. One that died is replaced; what it had to do Dask gives to the next. What a keeper that was killed could not end
is found by a mark in its environment.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from fcctl_remote.run.process import KILL_PATIENCE_S, family, send
from fcctl_tune.errors import TuneError
from fcctl_tune.trial import process, tasks
from fcctl_tune.trial.slot import SERVING, Serving
from fcctl_tune.trial.tasks import Candidate, TrialSpec
from fcctl_tune.workers import devices
from fcctl_tune.workers.interfaces import Host, worker_name

#: A name's worker may die so often before the machine is given up: a trial that kills it does so six times.
RESTARTS = 100
#: How long keepers have at the end, seconds.
CLOSE_S = 5.0
#: Names a keeper and all that descends from it.
MARK = "FCCTL_TUNE_KEEPER_MARK"

#: Runs the module that it is told. With `-m` Python would import from the folder that it is started in, the user's,
#: whose queue.py is none of ours; `-P` is of Python 3.11.
_MODULE = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def this_machine(name: str, say: Callable[[str], None]) -> Host:
    """As a host: its GPUs of the model there is most of, and a builder for each other processor."""
    found = devices.devices()
    used = devices.alike(found)
    if len(used) < len(found):
        others = ", ".join(sorted({d.model for d in found} - {used[0].model}))
        say("timing on %d x %s; left out, since times do not compare: %s" % (len(used), used[0].model, others))
    return Host(name, max(1, process.processors() - len(used)), tuple(used))


@dataclass
class Worker:
    name: str
    slots: Sequence[str]  # --cpu N or --gpu 1
    env: Mapping[str, str]
    keeper: Optional["subprocess.Popen[bytes]"] = None
    mark: str = ""
    deaths: int = 0


@dataclass
class WorkerPool:
    """The workers of ``host``, this machine. ``tls`` is the search's key; ``env`` is for all of them; ``serving`` is
    what those of GPUs start at once, if that is known."""

    host: Host
    folder: str
    tls: Optional[str] = None
    env: Mapping[str, str] = field(default_factory=dict)
    serving: Optional[Serving] = None
    address: str = ""

    def __post_init__(self) -> None:
        cpu = Worker("cpu", ("--cpu", str(self.host.cpus)), {})
        early = {SERVING: json.dumps(asdict(self.serving))} if self.serving is not None else {}
        gpus = [Worker(d.worker, ("--gpu", "1"), {**d.env, **early}) for d in self.host.devices]
        self.workers: Dict[str, Worker] = {w.name: w for w in (cpu, *gpus)}

    def launch(self) -> None:
        """Start their processes; they import while we do."""
        for worker in self.workers.values():
            self._launch(worker)

    def begin(self, recipe: TrialSpec, candidate: Candidate) -> None:
        """Let this build begin while the search comes up. If it does not, it begins when it is asked for."""
        self._say(self.workers["cpu"], tasks.BEGIN + base64.b64encode(pickle.dumps((recipe, candidate))))

    def tell(self, address: str) -> None:
        """Where the scheduler is: they have waited for it."""
        self.address = address
        for worker in self.workers.values():
            self._tell(worker)

    def _launch(self, worker: Worker) -> None:
        folder = os.path.join(self.folder, worker.name)
        argv = [
            sys.executable, "-S", "-c", _MODULE, "fcctl_tune.workers.supervisor", self.folder,
            sys.executable, "-c", _MODULE, "fcctl_tune.workers.worker",
            "--name", worker_name(self.host.key, worker.name),
            *worker.slots, "--host", self.host.key, "--folder", folder, *(["--tls", self.tls] if self.tls else []),
        ]  # fmt: skip
        name = worker_name(self.host.name, worker.name)
        worker.mark = uuid.uuid4().hex
        env = {**os.environ, **self.env, **worker.env, "FCCTL_TUNE_WORKER": name, MARK: worker.mark}
        worker.keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env, bufsize=0)

    def _tell(self, worker: Worker) -> None:
        self._say(worker, self.address.encode())

    def _say(self, worker: Worker, line: bytes) -> None:
        """One that died before it heard is seen by :meth:`ended`."""
        assert worker.keeper is not None and worker.keeper.stdin is not None  # noqa: S101, PT018
        with contextlib.suppress(BrokenPipeError):
            worker.keeper.stdin.write(line + b"\n")

    def ended(self) -> List[Worker]:
        """Those that died, with how in ``keeper.returncode``."""
        return [w for w in self.workers.values() if w.keeper is not None and w.keeper.poll() is not None]

    def replace(self, worker: Worker) -> None:
        """Start another in the place of one that died.

        Raises:
            TuneError: this one dies again and again.
        """
        worker.deaths += 1
        _let_go(worker)
        if worker.deaths > RESTARTS:
            raise TuneError(
                "the worker %s died %d times" % (worker.name, worker.deaths),
                "see the machine's log for what kills it (dmesg, out of memory?)",
            )
        self._launch(worker)
        self._tell(worker)

    def end(self) -> None:
        """Take the pipes away; whoever does not go is killed. Doing it twice is harmless."""
        for worker in self.workers.values():
            if worker.keeper is not None and worker.keeper.stdin is not None:
                worker.keeper.stdin.close()
        deadline = time.monotonic() + CLOSE_S
        for worker in self.workers.values():
            if worker.keeper is not None:
                try:
                    worker.keeper.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    worker.keeper.kill()
                _let_go(worker)


def _let_go(worker: Worker) -> None:
    """Of a keeper that ended, or is about to."""
    assert worker.keeper is not None  # noqa: S101
    if worker.keeper.stdin is not None:
        worker.keeper.stdin.close()
    if worker.keeper.wait() < 0:
        _end_marked(worker.mark)
    worker.keeper = None


def _end_marked(mark: str) -> None:
    """Kill what a keeper has left behind that was killed itself (Linux)."""
    marker = ("%s=%s" % (MARK, mark)).encode()
    deadline = time.monotonic() + KILL_PATIENCE_S
    while time.monotonic() < deadline:
        left = family(marker=marker)
        if not left:
            return
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)
