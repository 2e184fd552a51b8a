"""The ``environment`` document: the facts of a machine, and what to think of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fcctl_remote.base.hostfacts import boot_id
from fcctl_remote.base.programs import ask, which
from fcctl_remote.probe import checks, cuda, gpu, host, pythons
from fcctl_remote.probe.environment import apply_facts, find_facts
from fcctl_remote.wire import SCHEMA_VERSION

REQUIRE = ("auto", "gpu", "none")
#: The variables that matter to CUDA work. Others are left out: an environment holds secrets.
VARIABLES = (
    "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "PATH", "LD_LIBRARY_PATH", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST", "CUDAARCHS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_CACHE_PATH", "CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
    "CC", "CXX", "CUDACXX", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "OMP_NUM_THREADS", "LANG", "LC_ALL",
    "FCCTL_PYTHON", "FCCTL_CUDA_ARCH",
)  # fmt: skip


#: A first import from a cold disk takes tens of seconds.
TORCH_TIMEOUT_S = 90.0
#: In a process of its own: importing torch takes seconds and can crash.
_ASK_TORCH = """
import json
out = {}
try:
    import torch
    out.update(version=torch.__version__, cuda_version=torch.version.cuda, cuda_available=torch.cuda.is_available())
    if out["cuda_available"]:
        out["device"] = torch.cuda.get_device_name(0)
        out["capability"] = "%d.%d" % torch.cuda.get_device_capability(0)
        out["archs"] = torch.cuda.get_arch_list()
        names = ("flash", "mem_efficient", "math", "cudnn")
        out["sdpa"] = {n: bool(getattr(torch.backends.cuda, n + "_sdp_enabled", lambda: False)()) for n in names}
    elif torch.version.cuda:
        try:
            torch.cuda.init()
        except Exception as error:
            out["why"] = str(error)[:300]
except BaseException as error:
    out["error"] = "%s: %s" % (type(error).__name__, str(error)[:300])
print("\\n" + json.dumps(out))
"""


def collect(env: Mapping[str, str] | None = None, require: str = "auto") -> dict[str, Any]:
    """Probe this machine. Takes as long as importing torch does; never hangs on a program that does.

    ``require`` is ``gpu`` (a machine without one fails), ``none`` (nothing about GPUs counts), or ``auto``: ``gpu`` if
    one is visible to nvidia-smi, as a device file, or on the PCI bus, so that a GPU whose driver died is a failure.
    """
    env = dict(os.environ if env is None else env)
    started = time.time()
    smi = cuda.nvidia_smi(env)
    answer = gpu.query(smi, env) if smi else None
    facts = find_facts(env, answer)
    resolved = apply_facts(env, facts)
    document: dict[str, Any] = {"kind": "environment", "schema_version": SCHEMA_VERSION, "time": started}
    document.update(_ask_programs({**env, **resolved}, facts, answer))
    document["cuda"]["on_path"] = which("nvcc", env) is not None
    document.update(
        os=host.operating_system(),
        cpu=host.processor(),
        disk=host.disk(env.get("HOME") or "/"),
        tools=host.tools({**env, **resolved}),
        boot_id=boot_id(),
        env={name: env[name] for name in VARIABLES if name in env},
        resolved_env=resolved,
    )
    expect = _expectation(document["gpu"], require)
    document["require"] = require
    document["checks"] = checks.judge(document, expect)
    document["summary"] = checks.summary(document["checks"])
    document["duration_s"] = round(time.time() - started, 3)
    return document


def _expectation(gpu_facts: Mapping[str, Any], require: str) -> str:
    if require != "auto":
        return require
    return "gpu" if gpu_facts["present"] or gpu_facts["installed"] else "absent"


def _ask_programs(env: Mapping[str, str], facts: Mapping[str, Any], answer: gpu.Answer | None) -> dict[str, Any]:
    """Ask torch, nvcc, ncu, the compiler and nvidia-smi at the same time: torch takes longer than the rest together."""
    compiler = host.cxx(env)
    with ThreadPoolExecutor(max_workers=5) as pool:
        torch = pool.submit(_torch, facts["python"], facts["torch_file"], env)
        nvcc = pool.submit(host.version, facts["nvcc"], r"release ([0-9]{1,3}\.[0-9]{1,3})", env)
        ncu = pool.submit(host.version, facts["ncu"], r"Version ([0-9]{4}\.[0-9.]{1,20})", env)
        cxx = pool.submit(host.version, compiler, r"(\S[^\n]{0,198})", env)
        rows = answer.rows if answer else []
        newest = pool.submit(gpu.cuda_version, facts["nvidia_smi"], env) if rows else None
    gpu_facts = gpu.describe(rows, newest.result() if newest else None, env)
    gpu_facts["installed"] = [*gpu.pci_devices(), *gpu.device_files()]
    gpu_facts["complaint"] = answer.complaint if answer else None
    return {
        "gpu": gpu_facts,
        "cuda": {"home": facts["cuda_home"], "nvcc": facts["nvcc"], "version": nvcc.result()},
        "ncu": {"path": facts["ncu"], "version": ncu.result(), "counters": gpu.counters()},
        "torch": torch.result(),
        "compiler": {"cxx": compiler, "version": cxx.result()},
    }


def _torch(python: str, torch_file: str | None, env: Mapping[str, str]) -> dict[str, Any]:
    """``{python, version, cuda_version, cuda_available, device?, capability?, archs?, sdpa?, why?, error?, install?}``.

    ``install``: without torch, the command that gives it to this Python."""
    facts: dict[str, Any] = {"python": python, "version": None, "cuda_version": None, "cuda_available": False}
    if torch_file is None:
        return {**facts, "install": pythons.install(python, ["torch"], env)}
    answer, done = ask(python, _ASK_TORCH, TORCH_TIMEOUT_S, env)
    if answer:
        return {**facts, **answer}
    if done.timed_out:
        return {**facts, "error": "importing torch took over %d s" % TORCH_TIMEOUT_S}
    return {**facts, "error": "importing torch failed with exit code %s: %s" % (done.code, done.err.strip()[-200:])}
