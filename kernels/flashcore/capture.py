"""How much of a CUDA graph there is while it is being captured, from the driver.

A launch that adds nothing to the graph went to another stream, or did not happen: either way the graph's replay would
be timed for work that it does not do.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


@functools.cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuStreamGetCaptureInfo_v2.restype = driver.cuGraphGetNodes.restype = ctypes.c_int
    except (OSError, AttributeError):
        return None
    return driver


def nodes(stream: int) -> int | None:
    """Nodes so far of the graph that ``stream`` (its handle) captures; None where the driver does not tell."""
    driver = _driver()
    if driver is None:
        return None
    status, identity, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    code = driver.cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(identity), ctypes.byref(graph), None, None
    )
    if code != 0 or status.value != _CAPTURING or not graph.value:
        return None
    count = ctypes.c_size_t()
    if driver.cuGraphGetNodes(graph, None, ctypes.byref(count)) != 0:
        return None
    return int(count.value)
