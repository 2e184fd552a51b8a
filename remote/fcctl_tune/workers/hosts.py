"""Hosts of a search, their GPUs, and the workers of this one: one that builds, and one for each GPU.

Each worker is a process that ends with this one, whose pipe it reads. One that died is replaced, and Dask gives its
work to the next. What it left running is found by a mark in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import IO, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from fcctl_remote.base.processes import kill_family
from fcctl_remote.base.programs import run
from fcctl_remote.probe.gpu import nvidia_smi
from fcctl_tune.errors import TuneError
from fcctl_tune.trial import process
from fcctl_tune.trial.tasks import TrialSpec

SMI_TIMEOUT_S = 30.0
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
_GPU = re.compile(r"GPU (\d+): (.*?) \(UUID: (GPU-[0-9A-Za-z-]+)\)")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[0-9A-Za-z/-]+)\)")


@dataclass(frozen=True)
class Device:
    """A GPU on which trials are timed. Figures of one ``model`` compare."""

    worker: str
    model: str
    uuid: str = ""  # empty: the processor instead of a GPU

    @property
    def is_gpu(self) -> bool:
        return bool(self.uuid)

    @property
    def env(self) -> Dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.uuid} if self.uuid else {}


def devices(env: Optional[Mapping[str, str]] = None) -> List[Device]:
    """This machine's GPUs that ``CUDA_VISIBLE_DEVICES`` permits; the processor without any."""
    given = os.environ if env is None else env
    smi = nvidia_smi(given)
    listed = parse(run([smi, "-L"], SMI_TIMEOUT_S, given).out, given.get("CUDA_VISIBLE_DEVICES")) if smi else []
    return listed or [Device("gpu-0", "cpu")]


def parse(text: str, visible: Optional[str] = None) -> List[Device]:
    """The GPUs, or their MIG instances, that ``nvidia-smi -L`` prints.

    ``visible``: numbers and UUIDs, or the beginnings of some, to choose in that order. The first unknown one ends the
    list, as in CUDA.
    """
    gpus: List[Device] = []
    whole: Dict[str, Device] = {}
    for line in text.splitlines():
        gpu, mig = _GPU.match(line), _MIG.match(line)
        if gpu:
            gpus.append(Device("", gpu.group(2), gpu.group(3)))
            whole[gpu.group(1)] = gpus[-1]
        elif mig and gpus:
            model = whole[max(whole, key=int)].model
            if gpus[-1] is whole[max(whole, key=int)]:
                gpus.pop()
            gpus.append(Device("", f"{model} MIG {mig.group(1)}", mig.group(2)))
    chosen = gpus if visible is None else _chosen(gpus, whole, visible.split(","))
    return [Device(f"gpu-{number}", one.model, one.uuid) for number, one in enumerate(chosen)]


def _chosen(gpus: Sequence[Device], whole: Mapping[str, Device], names: Sequence[str]) -> List[Device]:
    chosen: List[Device] = []
    for name in (n.strip() for n in names):
        fitting = [whole[name]] if name in whole else [d for d in gpus if name and d.uuid.startswith(name)]
        if len(fitting) != 1:
            break
        chosen += fitting
    return chosen


def alike(gpus: Sequence[Device]) -> List[Device]:
    """The devices of the most frequent model: times of different models do not compare."""
    models = [d.model for d in gpus]
    most = max(models, key=lambda model: (models.count(model), -models.index(model)))
    return [d for d in gpus if d.model == most]


def multiprocessors(device: Device) -> Optional[int]:
    """A GPU's multiprocessors, by the driver in a process of its own; None if unknown."""
    if not device.is_gpu:
        return None
    done = run([sys.executable, "-S", "-c", _ASK], SMI_TIMEOUT_S, {**os.environ, **device.env})
    return int(done.out) if done.ok and done.out.strip().isdigit() else None


#: 16 is CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
_ASK = (
    "import ctypes; c = ctypes.CDLL('libcuda.so.1'); d = ctypes.c_int(); n = ctypes.c_int(); c.cuInit(0) or "
    "c.cuDeviceGet(ctypes.byref(d), 0) or c.cuDeviceGetAttribute(ctypes.byref(n), 16, d) or print(n.value)"
)


@dataclass(frozen=True)
class Host:
    """A machine that builds ``cpus`` trials at once and times one on each of ``devices``, which are of one model.

    Its name is empty if it searches alone. ``sms`` are a GPU's multiprocessors, if known. ``member`` differs each time
    that it joins a fleet: ``PROCESS.NUMBER``.
    """

    name: str
    cpus: int
    devices: Tuple[Device, ...]
    sms: Optional[int] = None
    member: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Host:
        """From ``dataclasses.asdict``."""
        return cls(**{**entry, "devices": tuple(Device(**device) for device in entry["devices"])})

    @property
    def key(self) -> str:
        """The address of calls: a later member of that name does not have these builds."""
        return f"{self.name}:{self.member}" if self.member else self.name

    @property
    def model(self) -> str:
        return self.devices[0].model

    def outline(self) -> str:
        """``2 x NVIDIA L4, 15 builds at once``."""
        return "%d x %s, %d builds at once" % (len(self.devices), self.model, self.cpus)


class CallFailed(Exception):
    """Why a call gave no result. ``killed``: workers died of it again and again."""

    def __init__(self, reason: str, killed: bool = False) -> None:
        super().__init__(reason)
        self.killed = killed


def resource(slot: str, host: str) -> str:
    """Dask's name of the slots of kind ``slot`` of the host with the key ``host``."""
    return f"{slot}:{host}" if host else slot


def worker_name(host: str, own: str) -> str:
    """``gpu-0``, in a fleet ``HOST/gpu-0``; for Dask with the host's key, since names are unique there."""
    return f"{host}/{own}" if host else own


def print_line(line: str) -> None:
    """Print a line; a reader that has gone is no error."""
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


def this_machine(name: str) -> Host:
    """This machine with its GPUs of the most frequent model, and a builder for each other processor."""
    gpus = devices()
    used = alike(gpus)
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
    process: "subprocess.Popen[bytes]" = field(init=False)
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
    #: Those that were started.
    workers: List[Worker] = field(default_factory=list)
    told: bytes = b""

    def launch(self) -> None:
        """Start their processes; they import while we do."""
        spec = os.path.join(self.folder, "trial_spec.pickle")
        with open(spec, "wb") as stream:
            pickle.dump(self.trial_spec, stream)
        is_served = self.trial_spec is not None and bool(self.trial_spec.serve)
        serving = ("--trial-spec", spec) if is_served else ()
        gpus = [Worker(d.worker, ("--gpu", "1", *serving), d.env) for d in self.host.devices]
        for worker in (Worker("cpu", ("--cpu", str(self.host.cpus)), {}), *gpus):
            self._launch(worker)
            self.workers.append(worker)

    def tell(self, address: str, pem: Optional[str]) -> None:
        """Send the workers the scheduler's address, for which they wait, and the key to it."""
        self.told = json.dumps({"address": address, "pem": pem}).encode() + b"\n"
        for worker in self.workers:
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
        with contextlib.suppress(BrokenPipeError):
            _stdin(worker).write(self.told)

    def ended(self) -> List[Worker]:
        """Workers that died; ``process.returncode`` says how."""
        return [worker for worker in self.workers if worker.process.poll() is not None]

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
        for worker in self.workers:
            _stdin(worker).close()
        deadline = time.monotonic() + CLOSE_S
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
            _clean_up(worker)


def _stdin(worker: Worker) -> IO[bytes]:
    assert worker.process.stdin is not None  # noqa: S101 - a pipe
    return worker.process.stdin


def _clean_up(worker: Worker) -> None:
    """Kill what an ended worker left running (Linux)."""
    _stdin(worker).close()
    worker.process.wait()
    kill_family(marker=("%s=%s" % (MARK, worker.mark)).encode())
