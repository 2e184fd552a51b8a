"""What the GPU says of itself: nvidia-smi, the kernel module's parameters, and the PCI bus behind both."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping

from fcctl_remote.base.hostfacts import read_text
from fcctl_remote.base.programs import Ran, run
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
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
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


# ------------------------------------------------------------------------------------------------ nvidia-smi
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
        "clocks": {key: _number(row, field) for key, field in _CLOCKS.items()},
        **{key: _number(row, field) for key, field in _NUMBERS.items()},
        **{key: {"Enabled": True, "Disabled": False}.get(row.get(field, "")) for key, field in _SWITCHES.items()},
        "compute_mode": row.get("compute_mode"),
        "throttle_reasons": throttle_reasons(reasons),
    }


def throttle_reasons(mask: str | None) -> list[str] | None:
    if not mask or not re.match(r"0x[0-9a-fA-F]{1,16}\Z", mask):
        return None
    bits = int(mask, 16)
    return [name for bit, name in THROTTLE_BITS.items() if bits & bit]


def _number(row: Mapping[str, str], field: str) -> float | None:
    text = row.get(field, "")
    if not re.match(r"-?[0-9]{1,12}(\.[0-9]{1,6})?\Z", text):
        return None
    return float(text) if "." in text else int(text)


# ------------------------------------------------------------------------------------------------ counters
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
