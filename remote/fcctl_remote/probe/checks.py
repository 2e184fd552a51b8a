"""The machine itself: operating system, processor, memory, disk, tools, compiler; unmet needs of a step; and judging
the facts: each check is pass, warn, fail or info, and each warn or fail says how to put it right.

Three expectations. ``gpu``: the machine should have one, so what CUDA work cannot do without is a fail. ``absent``:
none is installed and nobody asked for one: a warning, and what only CUDA work needs is info. ``none``: the user said
that it has none: all of that is info.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, Mapping, Tuple

from fcctl_remote.base import hostfacts
from fcctl_remote.base.hostfacts import runs_on
from fcctl_remote.base.programs import run, which
from fcctl_remote.probe import docker, environment, gpu
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
    """None if the machine has what is needed, else all that is missing and how to get it. ``env``: the step's."""
    absent = [tool for tool in needs.tools if not _has(tool, env)]
    unmet = []
    if absent:
        names = ["C++ compiler" if tool == "cxx" else tool for tool in absent]
        unmet.append(("this machine has no %s" % " and no ".join(names), "; ".join(_to_install(absent, env))))
    gpu_unmet = _unmet_gpu(needs, env) if needs.gpu or needs.compute_capability else None
    if gpu_unmet:
        unmet.append(gpu_unmet)
    return ("; ".join(what for what, _ in unmet), "; ".join(hint for _, hint in unmet)) if unmet else None


def _to_install(tools: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    packages = " ".join(tool for tool in tools if tool not in _HINTS)
    if packages:
        yield "install %s: sudo apt install %s (macOS: brew install %s)" % (
            "them" if " " in packages else "it", packages, packages,
        )  # fmt: skip
    for tool in tools:
        if tool == "nvcc" and env.get(docker.IMAGE):
            yield docker.hint(env[docker.IMAGE], env)
        elif tool in _HINTS:
            yield _HINTS[tool]


def _has(tool: str, env: Mapping[str, str]) -> bool:
    if tool == "torch":
        answer = environment.ask(env.get("FCCTL_PYTHON") or "python3", env)
        return answer is not None and isinstance(answer.get("torch"), str)
    if tool == "cxx":
        return cxx(env) is not None
    return which(tool, env) is not None


def _unmet_gpu(needs: Needs, env: Mapping[str, str]) -> tuple[str, str] | None:
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


#: The first word of a check's id -> its section of the report.
_SECTION = {
    "gpu": "GPU Hardware", "cuda": "CUDA Toolkit", "ncu": "Nsight Compute", "torch": "PyTorch CUDA",
    "tools": "Host tools", "disk": "Host tools", "host": "Host tools", "env": "Environment variables",
}  # fmt: skip
SECTIONS = tuple(dict.fromkeys(_SECTION.values()))

#: What the kernels are tuned for; other GPUs work, their figures are others.
L4_CAPABILITY = "8.9"
L4_MEMORY_MB = 22_000  # sold as 24 GB; 23,034 MiB are left with ECC on
MIN_CUDA = (12, 2)
MIN_CAPABILITY = (8, 0)  # mma.m16n8k16 and cp.async
_SLOWED = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")


#: Id, status, message, and how to put it right.
_Check = Tuple[str, str, str, "str | None"]
_Facts = Mapping[str, Any]


def _severity(expect: str, if_expected: str, if_absent: str = "info") -> str:
    """The status of something missing that only GPU work needs."""
    return {"gpu": if_expected, "absent": if_absent}.get(expect, "info")


def judge(document: _Facts, expect: str) -> list[dict[str, str | None]]:
    checks: list[_Check] = []
    for part in (_gpu, _cuda, _ncu, _torch, _host, _env):
        checks += part(document, expect)
    return [
        {"section": _SECTION[name.split(".")[0]], "id": name, "status": status, "message": message, "hint": hint}
        for name, status, message, hint in checks
    ]


def summary(checks: list[dict[str, str | None]]) -> dict[str, Any]:
    counts = {status: sum(c["status"] == status for c in checks) for status in ("pass", "warn", "fail", "info")}
    status = "fail" if counts["fail"] else "warn" if counts["warn"] else "pass"
    return {"status": status, "passed": counts["pass"], "warnings": counts["warn"], "errors": counts["fail"]}


def version_of(text: str | None) -> tuple[int, ...]:
    """``"12.10"`` -> (12, 10); () if there is none."""
    parts = (text or "").split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else ()


def _gpu(document: _Facts, expect: str) -> Iterator[_Check]:
    gpu = document["gpu"]
    installed, complaint = gpu.get("installed") or [], gpu.get("complaint")
    if not gpu["present"] and not installed:
        hint = "CUDA steps are unavailable on this machine; CPU steps run. Choose a GPU target: --on NAME"
        if expect == "gpu":
            hint = "attach a GPU to this machine; to check without a GPU: --require none"
        yield "gpu.present", _severity(expect, "fail", "warn"), "this machine has no NVIDIA GPU", hint
    elif not gpu["present"]:
        yield "gpu.present", "info", "an NVIDIA GPU is installed: %s" % ", ".join(installed), None
        hint = "install the driver (Ubuntu: sudo apt install nvidia-driver-580-server, then reboot)"
        if complaint and "not answer" in complaint:
            hint = "the driver hangs: see dmesg | grep -i xid, then reboot the machine"
        elif complaint:
            hint = "reload the driver: sudo modprobe nvidia, or reboot; see dmesg | grep -i -e nvrm -e xid"
        yield "gpu.driver", _severity(expect, "fail", "fail"), complaint or "nvidia-smi is not installed", hint
    else:
        count = " (%d GPUs, the first is used)" % gpu["count"] if gpu["count"] > 1 else ""
        yield "gpu.present", "pass", "%s%s" % (gpu["name"], count), None
        supported = gpu["cuda_version"] or "?"
        yield "gpu.driver", "pass", "driver %s, supports CUDA %s" % (gpu["driver"], supported), None
        yield _architecture(gpu)
        yield from _health(gpu)


def _architecture(gpu: _Facts) -> _Check:
    capability, memory = gpu["compute_capability"], gpu["memory_mb"] or 0
    shown = "%s, %d MiB" % (gpu["arch"] or "architecture unknown", memory)
    if str(gpu["name"]).split()[-1:] == ["L4"]:
        if capability == L4_CAPABILITY and memory >= L4_MEMORY_MB:
            return "gpu.arch", "pass", "%s has the expected values of an L4" % shown, None
        hint = "the GPU is shared, or ECC retired memory pages: nvidia-smi -q -d ECC,PAGE_RETIREMENT"
        return "gpu.arch", "warn", "%s, but an L4 has sm_89 and 24 GB" % shown, hint
    if version_of(capability) and version_of(capability) < MIN_CAPABILITY:
        hint = "use a GPU of sm_80 or newer (A100, L4, H100) for the tensor-core kernels"
        return "gpu.arch", "warn", "%s: too old for mma.m16n8k16 and cp.async" % shown, hint
    return "gpu.arch", "info", "%s: not an L4; its times are not comparable with an L4's" % shown, None


def _health(gpu: _Facts) -> Iterator[_Check]:
    slowed = [r for r in gpu["throttle_reasons"] or [] if r in _SLOWED]
    clocks = gpu["clocks"]
    if slowed:
        hint = "wait until it has cooled down (nvidia-smi -q -d TEMPERATURE,POWER); do not benchmark now"
        yield "gpu.clocks", "warn", "the GPU is throttled: %s" % ", ".join(slowed), hint
    else:
        message = "SM %s of %s MHz, power limit %s W" % (clocks["sm_mhz"], clocks["max_sm_mhz"], gpu["power_limit_w"])
        yield "gpu.clocks", "pass", message, None
    if gpu["ecc_uncorrected"]:
        hint = "reset or replace the GPU: results may be wrong (nvidia-smi -q -d ECC)"
        yield "gpu.ecc", "fail", "%d uncorrected memory errors" % gpu["ecc_uncorrected"], hint
    if gpu["mig"]:
        hint = "benchmarks can use only a part of the GPU; to use all of it: sudo nvidia-smi -mig 0"
        yield "gpu.mig", "warn", "MIG mode is on", hint
    if (gpu["utilization_pct"] or 0) > 10 or (gpu["memory_used_mb"] or 0) > 2048:
        message = "in use: %s %%, %s MiB" % (gpu["utilization_pct"], gpu["memory_used_mb"])
        yield "gpu.busy", "warn", message, "see the processes: nvidia-smi; other work on the GPU distorts times"


def _cuda(document: _Facts, expect: str) -> Iterator[_Check]:
    cuda, version = document["cuda"], version_of(document["cuda"]["version"])
    if not cuda["nvcc"]:
        hint = "install the toolkit (Ubuntu: sudo apt install cuda-toolkit-12-9), or, if it is installed elsewhere, "
        hint += "export CUDA_HOME=/path/to/cuda"
        yield "cuda.nvcc", _severity(expect, "fail"), "nvcc not found: this machine cannot compile CUDA", hint
        return
    if not version:
        hint = "see the error: %s --version" % cuda["nvcc"]
        yield "cuda.nvcc", _severity(expect, "fail", "warn"), "%s cannot be run" % cuda["nvcc"], hint
        return
    if version < MIN_CUDA:
        hint = "install CUDA 12.2 or newer, and set CUDA_HOME to it"
        yield "cuda.nvcc", "warn", "CUDA %s is older than 12.2" % cuda["version"], hint
    else:
        yield "cuda.nvcc", "pass", "nvcc %s at %s" % (cuda["version"], cuda["nvcc"]), None
    if not cuda["on_path"]:
        hint = "fcctl adds it to the PATH of steps; for your own shell: export PATH=%s:$PATH"
        yield "cuda.path", "info", "nvcc is not on PATH", hint % os.path.dirname(cuda["nvcc"])
    driver = version_of(document["gpu"].get("cuda_version"))
    if driver and driver < version[:2]:
        shown = "the driver supports CUDA %d.%d, the toolkit is %d.%d" % (driver[:2] + version[:2])
        if driver[0] < version[0]:
            hint = "programs will end with cudaErrorInsufficientDriver: update the driver, or use an older toolkit"
            yield "cuda.driver", "fail", shown, hint
        else:
            hint = "build for the GPU's own architecture (sm_..), because the driver rejects PTX of a newer toolkit; "
            yield "cuda.driver", "warn", shown, hint + "or update the driver"


def _ncu(document: _Facts, expect: str) -> Iterator[_Check]:
    ncu = document["ncu"]
    if not ncu["path"]:
        hint = "sudo apt install cuda-nsight-compute-12-9 (or your CUDA's version); profile steps are unavailable"
        yield "ncu.path", _severity(expect, "warn"), "ncu not found", hint
    elif not ncu["version"]:
        hint = "see the error: %s --version" % ncu["path"]
        yield "ncu.path", _severity(expect, "warn"), "%s cannot be run" % ncu["path"], hint
    else:
        yield "ncu.path", "pass", "ncu %s at %s" % (ncu["version"], ncu["path"]), None
        if ncu["counters"] == "restricted":
            hint = "allow all users to read them: fcctl hosts prepare TARGET "
            hint += "(NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module)"
            message = "only administrators may read performance counters (ERR_NVGPUCTRPERM)"
            yield "ncu.counters", _severity(expect, "warn"), message, hint
        elif ncu["counters"] == "allowed":
            yield "ncu.counters", "pass", "this user may read performance counters", None
        else:
            message = "unknown whether this user may read performance counters"
            yield "ncu.counters", "info", message, None


def _torch(document: _Facts, expect: str) -> Iterator[_Check]:
    torch, has_gpu = document["torch"], document["gpu"]["present"]
    if torch.get("error"):
        hint = "reinstall it: %s -m pip install --force-reinstall torch" % torch["python"]
        yield "torch.import", _severity(expect, "warn", "warn"), torch["error"], hint
        return
    if not torch["version"]:
        install = torch.get("install") or "%s -m pip install torch" % (torch["python"] or "python3")
        message = "no Python with torch found, so kernels cannot be compared with SDPA"
        hint = "%s, or set FCCTL_PYTHON to a Python with torch" % install
        yield "torch.import", _severity(expect, "warn", "warn"), message, hint
        return
    yield "torch.import", "pass", "torch %s in %s" % (torch["version"], torch["python"]), None
    if torch["cuda_available"]:
        yield "torch.cuda", "pass", "CUDA %s on %s" % (torch["cuda_version"], torch.get("device")), None
        gpu = "%d%d" % (*version_of(torch.get("capability")), 0, 0)[:2]
        archs = [arch for arch in torch.get("archs") or [] if arch.startswith("sm_")]
        if archs and not any(runs_on(arch, gpu) for arch in archs):
            message = "this torch has no kernels for sm_%s" % gpu
            yield "torch.arch", "warn", message, "install a torch built for this GPU (a newer CUDA wheel)"
    elif not torch["cuda_version"]:
        hint = "%s -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu129"
        status = "warn" if has_gpu else "info"
        yield "torch.cuda", status, "this torch is built for the CPU only", hint % torch["python"]
    else:
        hint = "its CUDA %s needs a newer driver, or CUDA_VISIBLE_DEVICES hides the GPU" % torch["cuda_version"]
        message = "torch sees no GPU: %s" % (torch.get("why") or "torch gave no reason")
        yield "torch.cuda", _severity(expect, "fail" if has_gpu else "info"), message, hint


_INSTALL = "sudo apt install %s (macOS: brew install %s)"


def _host(document: _Facts, expect: str) -> Iterator[_Check]:
    tools, compiler, cpu = document["tools"], document["compiler"], document["cpu"]
    for tool, status in {"bash": "fail", "tmux": "fail", "rsync": "warn", "git": "info"}.items():
        if tools[tool]:
            yield "tools." + tool, "pass", "%s at %s" % (tool, tools[tool]), None
        else:
            yield "tools." + tool, status, "%s not found" % tool, _INSTALL % (tool, tool)
    if compiler["cxx"]:
        yield "tools.cxx", "pass", "%s" % (compiler["version"] or compiler["cxx"]), None
    else:
        status = "fail" if document["cuda"]["nvcc"] and expect == "gpu" else "warn"
        yield "tools.cxx", status, "no C++ compiler; nvcc needs one too", _INSTALL % ("g++", "gcc")
    free = document["disk"]["free_mb"]
    if free is not None:
        status = "fail" if free < 1024 else "warn" if free < 5 * 1024 else "pass"
        hint = None if status == "pass" else "free disk space (see du -xh ~ | sort -h | tail), or enlarge the disk"
        yield "disk.free", status, "%.1f GB free at %s" % (free / 1024, document["disk"]["path"]), hint
    memory = "%.1f GB" % (cpu["memory_mb"] / 1024) if cpu["memory_mb"] else "memory unknown"
    yield "host.cpu", "info", "%s, %s cores, %s" % (cpu["model"], cpu["cores"], memory), None


def _env(document: _Facts, expect: str) -> Iterator[_Check]:
    env, resolved = document["env"], document["resolved_env"]
    home, hidden = env.get("CUDA_HOME"), env.get("CUDA_VISIBLE_DEVICES")
    if home and resolved.get("CUDA_HOME", home) != home:
        hint = "steps use %s; unset CUDA_HOME, or set it to that folder" % resolved["CUDA_HOME"]
        yield "env.CUDA_HOME", "warn", "CUDA_HOME=%s has no bin/nvcc" % home, hint
    elif home and not document["cuda"]["nvcc"]:
        hint = "unset CUDA_HOME, or install the toolkit in that folder"
        yield "env.CUDA_HOME", _severity(expect, "warn"), "CUDA_HOME=%s has no bin/nvcc" % home, hint
    if hidden is not None and hidden.strip() in ("", "-1", "none", "NoDevFiles"):
        hint = "unset CUDA_VISIBLE_DEVICES"
        yield "env.CUDA_VISIBLE_DEVICES", _severity(expect, "warn"), "hides all GPUs from CUDA", hint
    if env.get("CUDA_LAUNCH_BLOCKING") == "1":
        hint = "unset CUDA_LAUNCH_BLOCKING: each launch waits for the one before, so all measured times are wrong"
        yield "env.CUDA_LAUNCH_BLOCKING", "warn", "CUDA_LAUNCH_BLOCKING=1", hint
    arch = (document["gpu"].get("arch") or "").replace("sm_", "")
    if arch and resolved["FCCTL_CUDA_ARCH"].rstrip("af") != arch:
        message = "FCCTL_CUDA_ARCH=%s, but the GPU is sm_%s" % (resolved["FCCTL_CUDA_ARCH"], arch)
        yield "env.FCCTL_CUDA_ARCH", "warn", message, "unset FCCTL_CUDA_ARCH, unless you cross-compile on purpose"
    for name in sorted(resolved):
        changed = "" if env.get(name) == resolved[name] else " (set for steps)"
        yield "env.resolved." + name, "info", "%s=%s%s" % (name, resolved[name], changed), None
