"""Judging the facts: each check is pass, warn, fail or info, and each warn or fail says how to put it right.

Three expectations. ``gpu``: the machine should have one, so what CUDA work cannot do without is a fail. ``absent``:
none is installed and nobody asked for one: a warning, and what only CUDA work needs is info. ``none``: the user said
that it has none: all of that is info.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

SECTIONS = ("GPU Hardware", "CUDA Toolkit", "Nsight Compute", "PyTorch CUDA", "Host tools", "Environment variables")
_GPU, _CUDA, _NCU, _TORCH, _HOST, _ENV = SECTIONS

#: What the kernels are tuned for; other GPUs work, their figures are others.
L4_CAPABILITY = "8.9"
L4_MEMORY_MB = 22_000  # sold as 24 GB; 23,034 MiB are left with ECC on
MIN_CUDA = (12, 2)
MIN_CAPABILITY = (8, 0)  # mma.m16n8k16 and cp.async
_SLOWED = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


class Checks:
    """The list of checks of one probe, and what is expected of the machine."""

    def __init__(self, expect: str) -> None:
        self.expect = expect
        self.items: list[dict[str, str | None]] = []

    def add(self, section: str, name: str, status: str, message: str, hint: str | None = None) -> None:
        self.items.append({"section": section, "id": name, "status": status, "message": message, "hint": hint})

    def severity(self, if_expected: str, if_absent: str = "info") -> str:
        """The status of something missing that only GPU work needs."""
        return {"gpu": if_expected, "absent": if_absent}.get(self.expect, "info")


def judge(document: Mapping[str, Any], expect: str) -> list[dict[str, str | None]]:
    checks = Checks(expect)
    parts: tuple[Callable[[Checks, Mapping[str, Any]], None], ...] = (_gpu, _cuda, _ncu, _torch, _host, _env)
    for part in parts:
        part(checks, document)
    return checks.items


def summary(checks: list[dict[str, str | None]]) -> dict[str, Any]:
    counts = {status: sum(c["status"] == status for c in checks) for status in ("pass", "warn", "fail", "info")}
    status = "fail" if counts["fail"] else "warn" if counts["warn"] else "pass"
    return {"status": status, "passed": counts["pass"], "warnings": counts["warn"], "errors": counts["fail"]}


def version_of(text: str | None) -> tuple[int, ...]:
    """``"12.10"`` -> (12, 10); () if there is none."""
    parts = (text or "").split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else ()


# ------------------------------------------------------------------------------------------------ GPU Hardware
def _gpu(checks: Checks, document: Mapping[str, Any]) -> None:
    gpu = document["gpu"]
    if not gpu["present"]:
        _gpu_missing(checks, gpu)
        return
    count = " (%d GPUs, the first is used)" % gpu["count"] if gpu["count"] > 1 else ""
    checks.add(_GPU, "gpu.present", "pass", "%s%s" % (gpu["name"], count))
    checks.add(_GPU, "gpu.driver", "pass", "driver %s, supports CUDA %s" % (gpu["driver"], gpu["cuda_version"] or "?"))
    _architecture(checks, gpu)
    _health(checks, gpu)


def _gpu_missing(checks: Checks, gpu: Mapping[str, Any]) -> None:
    installed = gpu.get("installed") or []
    if not installed:
        hint = "CUDA steps will be unavailable here; CPU steps run. Choose a GPU target with --on"
        if checks.expect == "gpu":
            hint = "attach a GPU to this machine, or probe with --require none if it should have none"
        checks.add(_GPU, "gpu.present", checks.severity("fail", "warn"), "no NVIDIA GPU in this machine", hint)
        return
    checks.add(_GPU, "gpu.present", "info", "an NVIDIA GPU is installed: %s" % ", ".join(installed))
    if gpu.get("complaint"):
        hint = "reload the driver: sudo modprobe nvidia, or reboot; see dmesg | grep -i -e nvrm -e xid"
        if "not answer" in gpu["complaint"]:
            hint = "the driver hangs: reboot the machine (fcctl's own runs are unaffected); see dmesg | grep -i xid"
        checks.add(_GPU, "gpu.driver", checks.severity("fail", "fail"), gpu["complaint"], hint)
    else:
        hint = "install the driver (Ubuntu: sudo apt install nvidia-driver-580-server, then reboot)"
        checks.add(_GPU, "gpu.driver", checks.severity("fail", "fail"), "nvidia-smi is not installed", hint)


def _architecture(checks: Checks, gpu: Mapping[str, Any]) -> None:
    capability, memory = gpu["compute_capability"], gpu["memory_mb"] or 0
    shown = "%s, %d MiB" % (gpu["arch"] or "architecture unknown", memory)
    is_l4 = str(gpu["name"]).split()[-1:] == ["L4"]
    if is_l4 and capability == L4_CAPABILITY and memory >= L4_MEMORY_MB:
        checks.add(_GPU, "gpu.arch", "pass", "%s: an L4 as expected" % shown)
    elif is_l4:
        hint = "the machine shares its GPU, or ECC page retirement took memory: nvidia-smi -q -d ECC,PAGE_RETIREMENT"
        checks.add(_GPU, "gpu.arch", "warn", "%s: an L4 has sm_89 and 24 GB" % shown, hint)
    elif version_of(capability) and version_of(capability) < MIN_CAPABILITY:
        hint = "use a GPU of sm_80 or newer (A100, L4, H100) for the tensor-core kernels"
        checks.add(_GPU, "gpu.arch", "warn", "%s: too old for mma.m16n8k16 and cp.async" % shown, hint)
    else:
        checks.add(_GPU, "gpu.arch", "info", "%s: not an L4; its times are not comparable with an L4's" % shown)


def _health(checks: Checks, gpu: Mapping[str, Any]) -> None:
    slowed = [r for r in gpu["throttle_reasons"] or [] if r in _SLOWED]
    if slowed:
        hint = "wait until it has cooled down (nvidia-smi -q -d TEMPERATURE,POWER); do not benchmark now"
        checks.add(_GPU, "gpu.clocks", "warn", "clocks are being held down: %s" % ", ".join(slowed), hint)
    else:
        clocks = gpu["clocks"]
        message = "SM %s of %s MHz, power limit %s W" % (clocks["sm_mhz"], clocks["max_sm_mhz"], gpu["power_limit_w"])
        checks.add(_GPU, "gpu.clocks", "pass", message)
    if gpu["ecc_uncorrected"]:
        hint = "reset or replace the GPU: results may be wrong (nvidia-smi -q -d ECC)"
        checks.add(_GPU, "gpu.ecc", "fail", "%d uncorrected memory errors" % gpu["ecc_uncorrected"], hint)
    if gpu["mig"]:
        hint = "benchmarks see a slice of the GPU: sudo nvidia-smi -mig 0 if the whole of it is wanted"
        checks.add(_GPU, "gpu.mig", "warn", "MIG mode is on", hint)
    if (gpu["utilization_pct"] or 0) > 10 or (gpu["memory_used_mb"] or 0) > 2048:
        message = "in use: %s %%, %s MiB" % (gpu["utilization_pct"], gpu["memory_used_mb"])
        checks.add(_GPU, "gpu.busy", "warn", message, "see who: nvidia-smi; benchmarks beside other work mean little")


# ------------------------------------------------------------------------------------------------ CUDA Toolkit
def _cuda(checks: Checks, document: Mapping[str, Any]) -> None:
    cuda, gpu = document["cuda"], document["gpu"]
    if not cuda["nvcc"]:
        hint = (
            "install the toolkit (Ubuntu: sudo apt install cuda-toolkit-12-9), or, if it is installed elsewhere, "
            "export CUDA_HOME=/path/to/cuda"
        )
        checks.add(_CUDA, "cuda.nvcc", checks.severity("fail"), "nvcc not found: CUDA cannot be compiled here", hint)
        return
    version = version_of(cuda["version"])
    if not version:
        hint = "run it by hand: %s --version" % cuda["nvcc"]
        checks.add(_CUDA, "cuda.nvcc", checks.severity("fail", "warn"), "%s does not run" % cuda["nvcc"], hint)
        return
    if version < MIN_CUDA:
        hint = "install CUDA 12.2 or newer, and point CUDA_HOME at it"
        checks.add(_CUDA, "cuda.nvcc", "warn", "CUDA %s is older than 12.2" % cuda["version"], hint)
    else:
        checks.add(_CUDA, "cuda.nvcc", "pass", "nvcc %s at %s" % (cuda["version"], cuda["nvcc"]))
    if not cuda["on_path"]:
        hint = "steps get it on PATH by themselves; for your own shell: export PATH=%s:$PATH" % _folder(cuda["nvcc"])
        checks.add(_CUDA, "cuda.path", "info", "nvcc is not on PATH", hint)
    _driver_match(checks, version_of(gpu.get("cuda_version")), version)


def _driver_match(checks: Checks, driver: tuple[int, ...], toolkit: tuple[int, ...]) -> None:
    if not driver or driver >= toolkit[:2]:
        return
    shown = "the driver supports CUDA %d.%d, the toolkit is %d.%d" % (driver[:2] + toolkit[:2])
    if driver[0] < toolkit[0]:
        hint = "programs will end with cudaErrorInsufficientDriver: update the driver, or use an older toolkit"
        checks.add(_CUDA, "cuda.driver", "fail", shown, hint)
    else:
        hint = "build for the GPU's own architecture (sm_..), since PTX of a newer toolkit does not load; or update it"
        checks.add(_CUDA, "cuda.driver", "warn", shown, hint)


# ------------------------------------------------------------------------------------------------ Nsight Compute
def _ncu(checks: Checks, document: Mapping[str, Any]) -> None:
    ncu = document["ncu"]
    if not ncu["path"]:
        hint = "sudo apt install cuda-nsight-compute-12-9 (or your CUDA's version); profile steps are unavailable"
        checks.add(_NCU, "ncu.path", checks.severity("warn"), "ncu not found", hint)
        return
    if not ncu["version"]:
        hint = "run it by hand: %s --version" % ncu["path"]
        checks.add(_NCU, "ncu.path", checks.severity("warn"), "%s does not run" % ncu["path"], hint)
        return
    checks.add(_NCU, "ncu.path", "pass", "ncu %s at %s" % (ncu["version"], ncu["path"]))
    if ncu["counters"] == "restricted":
        hint = (
            "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee "
            "/etc/modprobe.d/nvidia-profiling.conf, then reboot; or profile with sudo"
        )
        message = "performance counters are for administrators only (ERR_NVGPUCTRPERM)"
        checks.add(_NCU, "ncu.counters", checks.severity("warn"), message, hint)
    elif ncu["counters"] == "allowed":
        checks.add(_NCU, "ncu.counters", "pass", "performance counters may be read")
    else:
        checks.add(_NCU, "ncu.counters", "info", "whether performance counters may be read is not known before trying")


# ------------------------------------------------------------------------------------------------ PyTorch CUDA
def _torch(checks: Checks, document: Mapping[str, Any]) -> None:
    torch, gpu = document["torch"], document["gpu"]
    if torch.get("error"):
        hint = "reinstall it: %s -m pip install --force-reinstall torch" % torch["python"]
        checks.add(_TORCH, "torch.import", checks.severity("warn", "warn"), torch["error"], hint)
        return
    if not torch["version"]:
        install = torch.get("install") or "%s -m pip install torch" % (torch["python"] or "python3")
        hint = "%s, or set FCCTL_PYTHON to a Python that has it" % install
        message = "no Python with torch found: no SDPA to compare with"
        checks.add(_TORCH, "torch.import", checks.severity("warn", "warn"), message, hint)
        return
    checks.add(_TORCH, "torch.import", "pass", "torch %s in %s" % (torch["version"], torch["python"]))
    if torch["cuda_available"]:
        checks.add(_TORCH, "torch.cuda", "pass", "CUDA %s on %s" % (torch["cuda_version"], torch.get("device")))
        _torch_archs(checks, torch)
    elif not torch["cuda_version"]:
        hint = "%s -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu129"
        status = "warn" if gpu["present"] else "info"
        checks.add(_TORCH, "torch.cuda", status, "this torch is built for the CPU only", hint % torch["python"])
    else:
        hint = "its CUDA %s needs a newer driver, or CUDA_VISIBLE_DEVICES hides the GPU" % torch["cuda_version"]
        status = checks.severity("fail" if gpu["present"] else "info")
        message = "torch sees no GPU: %s" % (torch.get("why") or "no reason given")
        checks.add(_TORCH, "torch.cuda", status, message, hint)


def _torch_archs(checks: Checks, torch: Mapping[str, Any]) -> None:
    """Machine code runs on a GPU of the same major version and the same or a higher minor one."""
    major, minor = (*version_of(torch.get("capability")), 0, 0)[:2]
    found = [a[3:].rstrip("af") for a in torch.get("archs") or [] if a.startswith("sm_")]
    usable = any(a[:-1] == str(major) and int(a[-1]) <= minor for a in found if a.isdigit())
    if found and not usable:
        hint = "install a torch built for this GPU (a newer CUDA wheel)"
        checks.add(_TORCH, "torch.arch", "warn", "this torch has no code for sm_%d%d" % (major, minor), hint)


# ------------------------------------------------------------------------------------------------ Host tools
_INSTALL = "sudo apt install %s (macOS: brew install %s)"


def _host(checks: Checks, document: Mapping[str, Any]) -> None:
    tools, compiler, cpu = document["tools"], document["compiler"], document["cpu"]
    missing = {"bash": "fail", "tmux": "fail", "rsync": "warn", "git": "info"}
    for tool, status in missing.items():
        if tools[tool]:
            checks.add(_HOST, "tools." + tool, "pass", "%s at %s" % (tool, tools[tool]))
        else:
            checks.add(_HOST, "tools." + tool, status, "%s not found" % tool, _INSTALL % (tool, tool))
    if compiler["cxx"]:
        checks.add(_HOST, "tools.cxx", "pass", "%s" % (compiler["version"] or compiler["cxx"]))
    else:
        status = "fail" if document["cuda"]["nvcc"] and checks.expect == "gpu" else "warn"
        checks.add(_HOST, "tools.cxx", status, "no C++ compiler; nvcc needs one too", _INSTALL % ("g++", "gcc"))
    free = document["disk"]["free_mb"]
    if free is not None:
        status = "fail" if free < 1024 else "warn" if free < 5 * 1024 else "pass"
        hint = None if status == "pass" else "free some space, or enlarge the disk: du -xh ~ | sort -h | tail"
        checks.add(_HOST, "disk.free", status, "%.1f GB free at %s" % (free / 1024, document["disk"]["path"]), hint)
    memory = "%.1f GB" % (cpu["memory_mb"] / 1024) if cpu["memory_mb"] else "memory unknown"
    checks.add(_HOST, "host.cpu", "info", "%s, %s cores, %s" % (cpu["model"], cpu["cores"], memory))


# ------------------------------------------------------------------------------------------------ Environment variables
def _env(checks: Checks, document: Mapping[str, Any]) -> None:
    env, resolved = document["env"], document["resolved_env"]
    home = env.get("CUDA_HOME")
    if home and resolved.get("CUDA_HOME", home) != home:
        hint = "steps use %s; unset CUDA_HOME, or point it there" % resolved["CUDA_HOME"]
        checks.add(_ENV, "env.CUDA_HOME", "warn", "CUDA_HOME=%s has no bin/nvcc" % home, hint)
    elif home and not document["cuda"]["nvcc"]:
        hint = "unset CUDA_HOME, or install the toolkit there"
        checks.add(_ENV, "env.CUDA_HOME", checks.severity("warn"), "CUDA_HOME=%s has no bin/nvcc" % home, hint)
    hidden = env.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "none", "NoDevFiles"):
        hint = "unset CUDA_VISIBLE_DEVICES"
        checks.add(_ENV, "env.CUDA_VISIBLE_DEVICES", checks.severity("warn"), "hides every GPU from CUDA", hint)
    if env.get("CUDA_LAUNCH_BLOCKING") == "1":
        hint = "unset it: each launch waits for the last one, and every time measured is wrong"
        checks.add(_ENV, "env.CUDA_LAUNCH_BLOCKING", "warn", "CUDA_LAUNCH_BLOCKING=1", hint)
    arch = (document["gpu"].get("arch") or "").replace("sm_", "")
    if arch and resolved["FCCTL_CUDA_ARCH"].rstrip("af") != arch:
        hint = "unset FCCTL_CUDA_ARCH, unless you cross-compile on purpose"
        message = "FCCTL_CUDA_ARCH=%s, the GPU is sm_%s" % (resolved["FCCTL_CUDA_ARCH"], arch)
        checks.add(_ENV, "env.FCCTL_CUDA_ARCH", "warn", message, hint)
    for name in sorted(resolved):
        changed = "" if env.get(name) == resolved[name] else " (set for steps)"
        checks.add(_ENV, "env.resolved." + name, "info", "%s=%s%s" % (name, resolved[name], changed))


def _folder(path: str) -> str:
    return os.path.dirname(path)
