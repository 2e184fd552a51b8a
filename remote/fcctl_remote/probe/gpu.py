"""What the GPU says of itself: nvidia-smi, the kernel module's parameters, and the PCI bus behind both; and where the
CUDA toolkit, Nsight Compute and nvidia-smi are, also if PATH lacks them, as it does over SSH."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from fcctl_remote.base.hostfacts import read_text
from fcctl_remote.base.programs import Ran, run, which
from fcctl_remote.record import Any

SMI_TIMEOUT_S = 15.0
_PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_FIELDS = (
    "index", "name", "uuid", "pci.bus_id", "driver_version", "compute_cap", "memory.total", "memory.used",
    "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit", "power.draw", "temperature.gpu",
    "utilization.gpu", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "mig.mode.current",
    "persistence_mode", "compute_mode", "clocks_event_reasons.active", "clocks_throttle_reasons.active",
)  # fmt: skip
#: Fields of the document -> nvidia-smi's.
_CLOCKS = {
    "sm_mhz": "clocks.sm", "mem_mhz": "clocks.mem", "max_sm_mhz": "clocks.max.sm", "max_mem_mhz": "clocks.max.mem",
}  # fmt: skip
_NUMBERS = {
    "memory_mb": "memory.total", "memory_used_mb": "memory.used", "power_limit_w": "power.limit",
    "power_w": "power.draw", "temperature_c": "temperature.gpu", "utilization_pct": "utilization.gpu",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
_SWITCHES = {"ecc": "ecc.mode.current", "mig": "mig.mode.current", "persistence": "persistence_mode"}
#: Bits of the reasons why clocks are not at their highest (nvml.h, nvmlClocksEventReasons).
THROTTLE_BITS = {
    0x1: "gpu_idle", 0x2: "applications_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip


def pci_devices(root: str = _PCI) -> list[str]:
    """PCI addresses of installed NVIDIA display and compute controllers (class 0x03), whether or not a driver lives."""
    folders = sorted(glob.glob(os.path.join(glob.escape(root), "*")))
    vendors = [f for f in folders if read_text(f + "/vendor", 200).strip() == _NVIDIA]
    return [os.path.basename(f) for f in vendors if read_text(f + "/class", 200).startswith("0x03")]


def device_files() -> list[str]:
    return [*sorted(glob.glob("/dev/nvidia[0-9]*")), *(["/dev/dxg"] if os.path.exists("/dev/dxg") else [])]


def visible() -> bool:
    """Whether a GPU is installed, as far as can be told without its driver's help."""
    return bool(device_files() or pci_devices())


def query(smi: str, env: Mapping[str, str]) -> Answer:
    """Ask for all fields, less those this driver does not know."""
    fields = list(_FIELDS)
    for _attempt in range(8):
        done = run([smi, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"], SMI_TIMEOUT_S, env)
        unknown = re.search(r'Field "([^"]{1,80})" is not a valid field', done.out + done.err)
        if not unknown or unknown.group(1) not in fields:
            break
        fields.remove(unknown.group(1))
    rows = []
    for line in done.out.splitlines() if done.ok else []:
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields):
            rows.append({f: v for f, v in zip(fields, values) if not v.startswith("[")})  # noqa: B905
    return Answer(done, rows)


class Answer:
    def __init__(self, ran: Ran, rows: list[dict[str, str]]) -> None:
        self.ran = ran
        self.rows = rows

    @property
    def complaint(self) -> str | None:
        """Why there is no GPU in the answer; None if there is one."""
        if self.rows:
            return None
        if self.ran.timed_out:
            return "nvidia-smi did not answer within %d s" % SMI_TIMEOUT_S
        output = (self.ran.out + " " + self.ran.err).strip().splitlines()
        return "nvidia-smi failed: %s" % (output[0][:200] if output else "exit code %s" % self.ran.code)


def cuda_version(smi: str, env: Mapping[str, str]) -> str | None:
    """The newest CUDA the driver supports, from the head of nvidia-smi's table."""
    done = run([smi], SMI_TIMEOUT_S, env)
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*([0-9]{1,3}\.[0-9]{1,3})", done.out)
    return match.group(1) if match else None


def chosen(rows: list[dict[str, str]], env: Mapping[str, str]) -> dict[str, str]:
    """The row of the first GPU a CUDA program would see."""
    first = env.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    for row in rows:
        if first and (first == row.get("index") or row.get("uuid", "").startswith(first)):
            return row
    return rows[0]


def describe(rows: list[dict[str, str]], version: str | None, env: Mapping[str, str]) -> dict[str, Any]:
    """The ``gpu`` object of the environment document. Memory in MiB, clocks in MHz, power in W."""
    if not rows:
        return {"present": False, "count": 0}
    row = chosen(rows, env)
    cc = row.get("compute_cap")
    reasons = row.get("clocks_event_reasons.active") or row.get("clocks_throttle_reasons.active")
    return {
        "present": True,
        "name": row.get("name"),
        "count": len(rows),
        "uuid": row.get("uuid"),
        "pci": row.get("pci.bus_id"),
        "compute_capability": cc,
        "arch": "sm_" + cc.replace(".", "") if cc else None,
        "driver": row.get("driver_version"),
        "cuda_version": version,
        "clocks": {key: number(row.get(field, "")) for key, field in _CLOCKS.items()},
        **{key: number(row.get(field, "")) for key, field in _NUMBERS.items()},
        **{key: {"Enabled": True, "Disabled": False}.get(row.get(field, "")) for key, field in _SWITCHES.items()},
        "compute_mode": row.get("compute_mode"),
        "throttle_reasons": throttle_reasons(reasons),
    }


def throttle_reasons(mask: str | None) -> list[str] | None:
    if not mask or not re.match(r"0x[0-9a-fA-F]{1,16}\Z", mask):
        return None
    bits = int(mask, 16)
    return [name for bit, name in THROTTLE_BITS.items() if bits & bit]


def number(text: str) -> float | None:
    """A value of nvidia-smi; None where the GPU does not report it (``[N/A]``)."""
    if not re.match(r"-?[0-9]{1,12}(\.[0-9]{1,6})?\Z", text):
        return None
    return float(text) if "." in text else int(text)


def counters(params: str = "/proc/driver/nvidia/params", status: str = "/proc/self/status") -> str:
    """Whether this user may read performance counters: allowed, restricted or unknown."""
    match = re.search(r"^RmProfilingAdminOnly:\s*([01])", read_text(params), re.MULTILINE)
    if not match:
        return "unknown"
    return "allowed" if match.group(1) == "0" or _administrator(status) else "restricted"


def _administrator(status: str) -> bool:
    """CAP_SYS_ADMIN or CAP_PERFMON: root of a container may lack both."""
    text = read_text(status)
    if not text:
        return os.geteuid() == 0
    match = re.search(r"^CapEff:\s*([0-9a-f]{1,16})", text, re.MULTILINE)
    return bool(match and int(match.group(1), 16) & (1 << 21 | 1 << 38))


def capability(rows: list[dict[str, str]], env: Mapping[str, str]) -> str | None:
    value = describe(rows, None, env).get("compute_capability")
    return value if isinstance(value, str) else None


_TOOLKITS = (
    "/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/opt/cuda-*", "/opt/nvidia/hpc_sdk/*/*/cuda",
    "/usr/lib/nvidia-cuda-toolkit", "/usr/lib/cuda",
)  # fmt: skip
_NSIGHT = (
    "/opt/nvidia/nsight-compute/*", "/usr/local/NVIDIA-Nsight-Compute*", "/opt/cuda/nsight_compute",
    "/usr/local/cuda*/nsight-compute*", "/usr/lib/nsight-compute",
)  # fmt: skip
_SMI = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/opt/bin", "/opt/nvidia/bin")
_ROOTS = ("/usr/local", "/opt", "/opt/nvidia", "/opt/nvidia/nsight-compute")  # whose change may bring a new toolkit


def nvcc(env: Mapping[str, str]) -> str | None:
    """PATH, then ``CUDA_HOME``, then the usual folders (newest first), then pip's nvidia packages."""
    return _find("nvcc", env, (os.path.join(home, "bin") for home in _homes(env)))


def _find(name: str, env: Mapping[str, str], folders: Iterable[str]) -> str | None:
    """The program on PATH, else in the first of ``folders`` that has it."""
    paths = (os.path.join(folder, name) for folder in folders)
    return which(name, env) or next(filter(_executable, paths), None)


def _homes(env: Mapping[str, str]) -> Iterator[str]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(variable):
            yield env[variable]
    yield from _newest(_TOOLKITS)


def pip_nvcc(torch_file: str | None) -> str | None:
    """The last resort: ``nvidia-cuda-nvcc`` beside torch in site-packages, if it holds the compiler's driver."""
    if not torch_file:
        return None
    site = os.path.dirname(os.path.dirname(torch_file))
    places = [*_newest((os.path.join(glob.escape(site), "nvidia", "cu[0-9]*"),)), site + "/nvidia/cuda_nvcc"]
    paths = [os.path.join(place, "bin", "nvcc") for place in places]
    return next((path for path in paths if _executable(path)), None)


def home_of(nvcc_path: str, env: Mapping[str, str]) -> str | None:
    """``CUDA_HOME`` that goes with an nvcc: the user's own if it has one, else two folders above the program.

    A wrapper script (``/usr/local/bin/nvcc``) is no toolkit; then the newest usual folder counts.
    """
    own = env.get("CUDA_HOME")
    if own and _executable(os.path.join(own, "bin", "nvcc")):
        return own
    for path in (nvcc_path, os.path.realpath(nvcc_path)):
        home = os.path.dirname(os.path.dirname(path))
        if _is_toolkit(home):
            return home
    return next((home for home in _newest(_TOOLKITS) if _is_toolkit(home)), None)


def _is_toolkit(home: str) -> bool:
    return _executable(os.path.join(home, "bin", "nvcc")) and (
        os.path.isfile(os.path.join(home, "bin", "nvcc.profile")) or os.path.isdir(os.path.join(home, "nvvm"))
    )


def ncu(env: Mapping[str, str]) -> str | None:
    return _find("ncu", env, chain((os.path.join(home, "bin") for home in _homes(env)), _newest(_NSIGHT)))


def nvidia_smi(env: Mapping[str, str]) -> str | None:
    return _find("nvidia-smi", env, _SMI)


def libraries(home: str | None, smi: str | None) -> list[str]:
    """Folders for LD_LIBRARY_PATH: the toolkit's, and the driver's where it lies beside a bare nvidia-smi."""
    folders = []
    if home:
        folders += [f for f in (os.path.join(home, "lib64"), os.path.join(home, "lib")) if os.path.isdir(f)][:1]
    if smi and os.path.dirname(smi) == "/usr/local/nvidia/bin" and os.path.isdir("/usr/local/nvidia/lib64"):
        folders.append("/usr/local/nvidia/lib64")
    return folders


def watched(env: Mapping[str, str]) -> list[str]:
    """Paths whose change may change any answer above: for the cache."""
    path = [_lasting(p) for p in (env.get("PATH") or os.defpath).split(":") if p]
    return [*path[:50], *_ROOTS, *(env[v] for v in ("CUDA_HOME", "CUDA_PATH") if env.get(v))]


def _lasting(folder: str) -> str:
    """pyenv writes to its folder of shims whenever one of them runs; what they stand for is beside it."""
    parent, name = os.path.split(folder.rstrip("/"))
    return os.path.join(parent, "versions") if name == "shims" and os.path.basename(parent) == ".pyenv" else folder


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _newest(patterns: tuple[str, ...]) -> Iterator[str]:
    """Folders that match, in the order of the patterns, and of one pattern the highest version first."""
    for pattern in patterns:
        yield from sorted(glob.glob(pattern), key=_version, reverse=True)


def _version(path: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"[0-9]{1,6}", os.path.basename(path)))
