"""Hosts of a search, and their GPUs."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from fcctl_remote.base.programs import run
from fcctl_remote.probe.gpu import nvidia_smi

SMI_TIMEOUT_S = 30.0
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
    def process(self) -> str:
        """The member's process: the same after its link broke and it joined again."""
        return self.member.partition(".")[0]

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
