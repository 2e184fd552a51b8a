"""The machine itself: operating system, processor, memory, disk, tools, compiler; and unmet needs of a step."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base import hostfacts
from fcctl_remote.base.programs import run, which
from fcctl_remote.probe import docker, environment, gpu
from fcctl_remote.probe.checks import version_of
from fcctl_remote.wire import Needs

TOOLS = ("bash", "tmux", "rsync", "git", "nvidia-smi", "compute-sanitizer", "cuobjdump")
COMPILERS = ("c++", "g++", "clang++")
VERSION_TIMEOUT_S = 10.0


def operating_system() -> dict[str, Any]:
    match = re.search(r'^PRETTY_NAME="?([^"\n]{1,100})', hostfacts.read_text("/etc/os-release"), re.MULTILINE)
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "name": match.group(1) if match else "%s %s" % (platform.system(), platform.mac_ver()[0] or ""),
        "virtualization": _container(),
    }


def _container() -> str | None:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return "container"
    return "wsl" if "microsoft" in platform.release().lower() else None


def processor() -> dict[str, Any]:
    """Model, cores this process may use, and memory in MiB."""
    match = re.search(r"^model name\s*:\s*(.{1,120})$", hostfacts.read_text("/proc/cpuinfo"), re.MULTILINE)
    model = match.group(1).strip() if match else None
    if model is None and platform.system() == "Darwin":
        model = run(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], 5.0).out.strip() or None
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count()
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)
    except (ValueError, OSError):
        memory = 0
    return {"model": model or platform.machine(), "cores": cores, "memory_mb": memory or None}


def disk(folder: str) -> dict[str, Any]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return {"path": folder, "free_mb": None, "total_mb": None}
    return {"path": folder, "free_mb": usage.free >> 20, "total_mb": usage.total >> 20}


def tools(env: Mapping[str, str]) -> dict[str, str | None]:
    """Where each of :data:`TOOLS` is: those that the host program starts itself, where it would find them."""
    return {name: hostfacts.which(name, env) if name in hostfacts.TOOLS else which(name, env) for name in TOOLS}


def cxx(env: Mapping[str, str]) -> str | None:
    """The C++ compiler: ``$CXX`` if that is a program, else the first of c++, g++, clang++ on PATH."""
    given = env.get("CXX", "").split()
    names = (given[0], *COMPILERS) if given else COMPILERS
    return next((path for path in (which(name, env) for name in names) if path), None)


def version(program: str | None, pattern: str, env: Mapping[str, str]) -> str | None:
    """The first group of ``pattern`` in what the program prints as its version; None without one, or without it."""
    done = run([program, "--version"], VERSION_TIMEOUT_S, env) if program else None
    match = re.search(pattern, done.out) if done is not None and done.ok else None
    return match.group(1) if match else None


_HINTS = {
    "nvcc": "install the CUDA toolkit (Ubuntu: sudo apt install cuda-toolkit-12-9), or set CUDA_HOME",
    "ncu": "install Nsight Compute (Ubuntu: sudo apt install cuda-nsight-compute-12-9)",
    "torch": "python3 -m pip install torch, or set FCCTL_PYTHON to a Python with torch",
    "cxx": "install a C++ compiler (Ubuntu: sudo apt install g++; macOS: xcode-select --install)",
    "compute-sanitizer": "install compute-sanitizer, a part of the CUDA toolkit (Ubuntu: sudo apt install "
    "cuda-sanitizer-12-9)",
    "bazel": "install Bazelisk as bazel: https://bazel.build/install/bazelisk",
    "cuobjdump": "install cuobjdump, a part of the CUDA toolkit (Ubuntu: sudo apt install cuda-cuobjdump-12-9)",
}


def check_needs(needs: Needs, env: Mapping[str, str]) -> tuple[str, str] | None:
    """None if the machine has what is needed, else what is missing and how to get it. ``env``: the step's."""
    for tool in needs.tools:
        if not _has(tool, env):
            hint = _HINTS.get(tool, "install it: sudo apt install %s (macOS: brew install %s)" % (tool, tool))
            if tool == "nvcc" and env.get(docker.IMAGE):
                hint = docker.hint(env[docker.IMAGE], env)
            return "this machine has no %s" % ("C++ compiler" if tool == "cxx" else tool), hint
    if needs.gpu or needs.compute_capability:
        return _gpu(needs, env)
    return None


def _has(tool: str, env: Mapping[str, str]) -> bool:
    if tool == "torch":
        answer = environment.ask(env.get("FCCTL_PYTHON") or "python3", env)
        return answer is not None and isinstance(answer.get("torch"), str)
    if tool == "cxx":
        return cxx(env) is not None
    return which(tool, env) is not None


def _gpu(needs: Needs, env: Mapping[str, str]) -> tuple[str, str] | None:
    smi = gpu.nvidia_smi(env)
    answer = gpu.query(smi, env) if smi else None
    if answer is None or not answer.rows:
        if gpu.visible():
            complaint = answer.complaint if answer else "nvidia-smi is not installed"
            return "the GPU cannot be used: %s" % complaint, "see the reason: fcctl preflight"
        return "this machine has no NVIDIA GPU", "choose a GPU target: --on NAME"
    if not needs.compute_capability:
        return None
    capability = gpu.capability(answer.rows, env)
    least = version_of(needs.compute_capability)
    if not least:
        return "compute_capability '%s' is not a version" % needs.compute_capability, 'write it as "8.9"'
    if version_of(capability) < least:
        message = "the GPU has compute capability %s; the step needs %s or higher" % (
            capability,
            needs.compute_capability,
        )
        return message, "choose a target with a newer GPU: --on NAME"
    return None
