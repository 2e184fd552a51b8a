"""The workers of one machine: one that builds, and one for each GPU.

Each is a process that this one holds by a pipe: it ends with it, however that ends. One that died is replaced; what it
had to do Dask gives to the next. What it left running is found by a mark in its environment.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence

from fcctl_remote.run.process import kill_family
from fcctl_tune.errors import TuneError
from fcctl_tune.trial import process
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import devices
from fcctl_tune.workers.interfaces import Host, worker_name

#: A name's worker may die so often before the machine is given up: a trial that kills it does so six times.
RESTARTS = 100
#: How long workers have at the end, seconds.
CLOSE_S = 5.0
#: Names a worker and all that descends from it.
MARK = "FCCTL_TUNE_WORKER_MARK"

#: Runs the module that it is told. With `-m` Python would import from the folder that it is started in, the user's,
#: whose queue.py is none of ours; `-P` is of Python 3.11.
_MODULE = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def print_line(line: str) -> None:
    """A line for whoever watches; a watcher who has gone is no reason to stop."""
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


def this_machine(name: str) -> Host:
    """As a host: its GPUs of the model there is most of, and a builder for each other processor."""
    gpus = devices.devices()
    used = devices.alike(gpus)
    if len(used) < len(gpus):
        others = ", ".join(sorted({d.model for d in gpus} - {used[0].model}))
        print_line("timing on %d x %s; left out, since times do not compare: %s" % (len(used), used[0].model, others))
    return Host(name, max(1, process.processors() - len(used)), tuple(used))


@dataclass
class Worker:
    name: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    process: Optional["subprocess.Popen[bytes]"] = None
    mark: str = ""
    deaths: int = 0


@dataclass
class WorkerPool:
    """The workers of ``host``, this machine. ``tls`` is the search's key; ``env`` is for all of them. If ``trial_spec``
    is known already, those of GPUs start what serves at once."""

    host: Host
    folder: str
    tls: Optional[str] = None
    env: Mapping[str, str] = field(default_factory=dict)
    trial_spec: Optional[TrialSpec] = None
    address: str = ""

    def __post_init__(self) -> None:
        cpu = Worker("cpu", ("--cpu", str(self.host.cpus)), {})
        is_served = self.trial_spec is not None and bool(self.trial_spec.serve)
        serving = ("--trial-spec", self._trial_spec_file) if is_served else ()
        gpus = [Worker(d.worker, ("--gpu", "1", *serving), d.env) for d in self.host.devices]
        self.workers: Dict[str, Worker] = {w.name: w for w in (cpu, *gpus)}

    @property
    def _trial_spec_file(self) -> str:
        return os.path.join(self.folder, "trial_spec.pickle")

    def launch(self) -> None:
        """Start their processes; they import while we do."""
        with open(self._trial_spec_file, "wb") as stream:
            pickle.dump(self.trial_spec, stream)
        for worker in self.workers.values():
            self._launch(worker)

    def tell(self, address: str) -> None:
        """Where the scheduler is: they have waited for it."""
        self.address = address
        for worker in self.workers.values():
            self._tell(worker)

    def _launch(self, worker: Worker) -> None:
        argv = [
            sys.executable, "-c", _MODULE, "fcctl_tune.workers.worker", "--name",
            worker_name(self.host.key, worker.name), *worker.arguments, "--host", self.host.key, "--folder",
            os.path.join(self.folder, worker.name), *(["--tls", self.tls] if self.tls else []),
        ]  # fmt: skip
        name = worker_name(self.host.name, worker.name)
        worker.mark = uuid.uuid4().hex
        env = {**os.environ, **self.env, **worker.env, "FCCTL_TUNE_WORKER": name, MARK: worker.mark}
        worker.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env, bufsize=0, start_new_session=True
        )

    def _tell(self, worker: Worker) -> None:
        """One that died before it heard is seen by :meth:`ended`."""
        assert worker.process is not None and worker.process.stdin is not None  # noqa: S101, PT018
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.write(self.address.encode() + b"\n")

    def ended(self) -> List[Worker]:
        """Those that died, with how in ``process.returncode``."""
        return [w for w in self.workers.values() if w.process is not None and w.process.poll() is not None]

    def replace(self, worker: Worker) -> None:
        """Start another in the place of one that died.

        Raises:
            TuneError: this one dies again and again.
        """
        worker.deaths += 1
        _clean_up(worker)
        if worker.deaths > RESTARTS:
            raise TuneError(
                "the worker %s died %d times" % (worker.name, worker.deaths),
                "see the machine's log for what kills it (dmesg, out of memory?)",
            )
        self._launch(worker)
        self._tell(worker)

    def end(self) -> None:
        """Close the pipes; a worker that does not end is killed. Doing it twice is harmless."""
        for worker in self.workers.values():
            if worker.process is not None and worker.process.stdin is not None:
                worker.process.stdin.close()
        deadline = time.monotonic() + CLOSE_S
        for worker in self.workers.values():
            if worker.process is not None:
                try:
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    worker.process.kill()
                _clean_up(worker)


def _clean_up(worker: Worker) -> None:
    """After a worker that ended, or was killed: what it had no time to end (Linux)."""
    assert worker.process is not None  # noqa: S101
    if worker.process.stdin is not None:
        worker.process.stdin.close()
    worker.process.wait()
    worker.process = None
    kill_family(marker=("%s=%s" % (MARK, worker.mark)).encode())
