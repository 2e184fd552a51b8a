"""The machine itself: operating system, processor, memory, disk, tools, compiler."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base import hostfacts
from fcctl_remote.base.programs import run, which

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
