"""The workers of one machine: one that builds, and one for each GPU.

Each is a process that ends with this one, whose pipe it reads. A worker that died is replaced, and Dask gives its work
to the next. What it left running is found by a mark in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence

from fcctl_remote.base.processes import kill_family
from fcctl_tune.errors import TuneError
from fcctl_tune.trial import process
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import hosts
from fcctl_tune.workers.hosts import Host, worker_name

#: Deaths of one worker before the machine is given up: a trial that kills it does so six times.
RESTARTS = 100
#: Seconds that workers have to end.
CLOSE_S = 5.0
#: Marks a worker and its descendants.
MARK = "FCCTL_TUNE_WORKER_MARK"

#: Runs the module that is its argument. With `-m` Python would import the user's modules from the present folder; `-P`
#: needs Python 3.11.
_MODULE = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; runpy.run_module(sys.argv.pop(1), "
    "run_name='__main__', alter_sys=True)"
)


def print_line(line: str) -> None:
    """Print a line; a reader that has gone is no error."""
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


def this_machine(name: str) -> Host:
    """This machine with its GPUs of the most frequent model, and a builder for each other processor."""
    gpus = hosts.devices()
    used = hosts.alike(gpus)
    if len(used) < len(gpus):
        others = ", ".join(sorted({d.model for d in gpus} - {used[0].model}))
        print_line(
            "measuring on %d x %s; not used, because their times cannot be compared: %s"
            % (len(used), used[0].model, others)
        )
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
    """The workers of ``host``, this machine, with their files in ``folder``; ``env`` is for all of them. With a
    ``trial_spec``, GPU workers start its serve command at once."""

    host: Host
    folder: str
    env: Mapping[str, str] = field(default_factory=dict)
    trial_spec: Optional[TrialSpec] = None
    told: bytes = b""

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

    def tell(self, address: str, pem: Optional[str]) -> None:
        """Send the workers the scheduler's address, for which they wait, and the key to it."""
        self.told = json.dumps({"address": address, "pem": pem}).encode() + b"\n"
        for worker in self.workers.values():
            self._tell(worker)

    def _launch(self, worker: Worker) -> None:
        argv = [
            sys.executable, "-c", _MODULE, "fcctl_tune.workers.worker", "--name",
            worker_name(self.host.key, worker.name), *worker.arguments, "--host", self.host.key, "--folder",
            os.path.join(self.folder, worker.name),
        ]  # fmt: skip
        name = worker_name(self.host.name, worker.name)
        worker.mark = uuid.uuid4().hex
        env = {**os.environ, **self.env, **worker.env, "FCCTL_TUNE_WORKER": name, MARK: worker.mark}
        worker.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env, bufsize=0, start_new_session=True
        )

    def _tell(self, worker: Worker) -> None:
        """A worker that has just died is in :meth:`ended`."""
        assert worker.process is not None and worker.process.stdin is not None  # noqa: S101, PT018
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.write(self.told)

    def ended(self) -> List[Worker]:
        """Workers that died; ``process.returncode`` says how."""
        return [w for w in self.workers.values() if w.process is not None and w.process.poll() is not None]

    def replace(self, worker: Worker) -> None:
        """Start another for one that died. Raises: TuneError, if that happens again and again."""
        worker.deaths += 1
        _clean_up(worker)
        if worker.deaths > RESTARTS:
            problem = "the worker %s died %d times" % (worker.name, worker.deaths)
            raise TuneError(problem, "find out what kills it in the machine's log: dmesg; often memory is full")
        self._launch(worker)
        self._tell(worker)

    def end(self) -> None:
        """Close the pipes; kill workers that do not end. Idempotent."""
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
    """Kill what an ended worker left running (Linux)."""
    assert worker.process is not None  # noqa: S101
    if worker.process.stdin is not None:
        worker.process.stdin.close()
    worker.process.wait()
    worker.process = None
    kill_family(marker=("%s=%s" % (MARK, worker.mark)).encode())
