"""The GPU's clocks, power, temperature and throttle reasons at one moment, from NVML. Reads only, sets nothing."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

SM, MEMORY = 1, 2
#: Reasons that mean a kernel ran slower than it could; idling and a chosen clock do not.
THROTTLES = {
    0x0004: "sw_power_cap",
    0x0008: "hw_slowdown",
    0x0020: "sw_thermal",
    0x0040: "hw_thermal",
    0x0080: "hw_power_brake",
}


class Clocks:
    """NVML's view of torch's current GPU; ``read`` answers None where there is no NVML or no GPU."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpu = ctypes.c_void_p()
        if not torch.cuda.is_available():
            return
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        uuid = "GPU-" + str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._gpu)) == 0:
            self._nvml = nvml

    def read(self) -> dict[str, Any] | None:
        """sm_mhz, mem_mhz, power_w, temperature_c (None where the card does not say); throttled, a list of reasons."""
        if self._nvml is None:
            return None
        power = self._number("nvmlDeviceGetPowerUsage")
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        return {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", SM),
            "mem_mhz": self._number("nvmlDeviceGetClockInfo", MEMORY),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._number("nvmlDeviceGetTemperature", 0),
            "throttled": [name for bit, name in THROTTLES.items() if reasons & bit],
        }

    def most_mhz(self) -> int | None:
        """The SM clock that the card may have at most."""
        return None if self._nvml is None else self._number("nvmlDeviceGetMaxClockInfo", SM)

    def driver(self) -> str | None:
        """The driver's version, None where there is no NVML or no GPU."""
        text = ctypes.create_string_buffer(96)
        if self._nvml is None or self._nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) != 0:
            return None
        return text.value.decode(errors="replace")

    def _number(self, function: str, *arguments: int, kind: Any = ctypes.c_uint) -> int | None:
        value = kind()
        code = getattr(self._nvml, function)(self._gpu, *arguments, ctypes.byref(value))
        return int(value.value) if code == 0 else None
