"""The GPUs of this machine, each with what makes a process see only that one."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from fcctl_remote.base.programs import run
from fcctl_remote.probe.cuda import nvidia_smi

SMI_TIMEOUT_S = 30.0
_GPU = re.compile(r"GPU (\d+): (.*?) \(UUID: (GPU-[0-9A-Za-z-]+)\)")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[0-9A-Za-z/-]+)\)")


@dataclass(frozen=True)
class Device:
    """One place where trials are timed. ``model`` is what figures are comparable within."""

    worker: str
    model: str
    uuid: str = ""  # empty: the processor stands in

    @property
    def is_gpu(self) -> bool:
        return bool(self.uuid)

    @property
    def env(self) -> Dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.uuid} if self.uuid else {}


def devices(env: Optional[Mapping[str, str]] = None) -> List[Device]:
    """This machine's GPUs, as far as ``CUDA_VISIBLE_DEVICES`` shows them; the processor where there is none."""
    given = os.environ if env is None else env
    smi = nvidia_smi(given)
    listed = parse(run([smi, "-L"], SMI_TIMEOUT_S, given).out, given.get("CUDA_VISIBLE_DEVICES")) if smi else []
    return listed or [Device("gpu-0", "cpu")]


def parse(text: str, visible: Optional[str] = None) -> List[Device]:
    """What ``nvidia-smi -L`` prints: GPUs, or their MIG instances where they are divided.

    ``visible``: numbers and UUIDs (also the beginnings of some) to choose from them, in that order. As CUDA has it, the
    first that there is none of ends the list.
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
    """The devices of the model there is most of: times of different models do not compare."""
    models = [d.model for d in gpus]
    most = max(models, key=lambda model: (models.count(model), -models.index(model)))
    return [d for d in gpus if d.model == most]


def multiprocessors(device: Device) -> Optional[int]:
    """Of a GPU, from the driver, asked in a process of its own; None where it does not say."""
    if not device.is_gpu:
        return None
    done = run([sys.executable, "-S", "-c", _ASK], SMI_TIMEOUT_S, {**os.environ, **device.env})
    return int(done.out) if done.ok and done.out.strip().isdigit() else None


#: 16 is CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
_ASK = (
    "import ctypes; c = ctypes.CDLL('libcuda.so.1'); d = ctypes.c_int(); n = ctypes.c_int(); c.cuInit(0) or "
    "c.cuDeviceGet(ctypes.byref(d), 0) or c.cuDeviceGetAttribute(ctypes.byref(n), 16, d) or print(n.value)"
)
