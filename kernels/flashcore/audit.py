"""Whether what was timed was the work: run after the timing, on the timers that gave the figures.

1. Order: behind a kernel that only waits, the launch must not have begun. One that has runs on another stream.
2. End: the same calls with the whole device waited for before the stop event take no longer. Else work was left behind.
3. Capture: every launch added as much to its CUDA graph as the others.
4. Results: some of the timed calls' own outputs are compared with float64.

The first three find mistakes and are made in the kernel's process, which could forge them; the fourth is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flashcore import inputs, reference, roundings, timing
from flashcore.errors import AuditFailed
from flashcore.launch import Kernel
from flashcore.shapes import Shape
from flashcore.variant import Variant

#: Device work after the stop event that is forgiven: the cost of looking, and a share of what was timed.
LATE_US, LATE_SHARE = 300.0, 0.1
#: How long the stream is kept waiting while the order is looked at, in clocks (some 20 ms) ..
WAIT_CLOCKS = 40_000_000
#: .. and how long a launch that does not wait has for showing itself, in seconds.
GRACE_S = 0.003
TRIES = 3


def launches(kernel: Kernel, timer: timing.Timer) -> dict[str, Any]:
    """Check that the kernel respects stream order, finishes before its event, and launches equally often in each part
    of a graph; returns these facts for the document. Runs in the kernel's own process.

    Raises:
        AuditFailed: with what is wrong.
    """
    found: dict[str, Any] = {}
    if isinstance(timer, timing.Eager):
        found["ordered"] = _ordered(kernel, timer.sets[0])
    if isinstance(timer, timing.Events):
        found["late_us"] = _nothing_late(timer)
    if isinstance(timer, timing.Graph):
        found["nodes_per_launch"] = _even(timer)
    return found


def _ordered(kernel: Kernel, tensors: inputs.Tensors) -> bool | None:
    """True; None if it could not be seen, since the device ran nothing beside the waiting stream."""
    for _ in range(TRIES):
        out = torch.full_like(tensors[0], math.nan)
        torch.cuda.synchronize()
        waiting = torch.cuda.Event()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(WAIT_CLOCKS)  # noqa: SLF001 (PyTorch's own tests wait with it)
            waiting.record()  # before the launch: one that has begun after the wait is in order
            kernel(*tensors, out=out)
        time.sleep(GRACE_S)
        with torch.cuda.stream(torch.cuda.Stream()):
            untouched = bool(torch.isnan(out).all())
        seen_in_time = not waiting.query()
        torch.cuda.synchronize()
        if seen_in_time and not untouched:
            raise AuditFailed(
                "the kernel started before the earlier work on its stream was finished",
                cause="the kernel runs on another stream than the caller's, so its measured time is invalid",
                hint="launch on flashcore_args.stream",
            )
        if seen_in_time:
            return True
    return None


def _nothing_late(timer: timing.Events) -> float:
    """Microseconds by which waiting for the whole device is slower; looked at again if that is long, since the GPU may
    have switched to another process meanwhile. Work left behind is seen each time."""
    for _ in range(TRIES):
        timed, late = timer.late_us()
        if late <= LATE_US + LATE_SHARE * timed:
            break
    else:
        raise AuditFailed(
            f"the device worked for {late:.0f} us more after {timed:.0f} us of timed work",
            cause="some of the kernel's work is on another stream than the measured one, or other programs use this "
            "GPU",
            hint="check for other programs with nvidia-smi; launch everything on flashcore_args.stream",
        )
    return round(late, 1)


def _even(timer: timing.Graph) -> int | None:
    """How many nodes each launch is; None if the driver does not tell."""
    seen = timer.nodes_per_launch
    if len(seen) > 1:
        counts = ", ".join(map(str, sorted(seen)))
        raise AuditFailed(
            f"its launches differ: they add {counts} nodes to a CUDA graph",
            cause="every launch must do the same work for the same shape",
        )
    return next(iter(seen), None)


def outputs(
    variant: Variant,
    samples: Sequence[tuple[inputs.Tensors, torch.Tensor]],
    configuration: Mapping[str, int] | None = None,
    shape: Shape | None = None,
) -> int:
    """Compare ``samples``, inputs and outputs of timed calls, with float64; returns their number.

    Raises:
        AuditFailed: one is wrong.
    """
    options = inputs.options(shape, variant.device) if shape else {}
    for tensors, out in samples:
        with reference.one_thread(out.shape[2] * tensors[1].shape[2]):
            fault = roundings.judge(
                out.double(), reference.expected_of(variant, tensors, configuration, **options)
            ).fault
        if fault:
            raise AuditFailed(
                f"the measured calls gave wrong results: {fault}",
                cause="each measured call gets new inputs, or those of an earlier call with one changed row; the "
                "kernel must read all of them",
                hint="python -m flashcore check " + variant.name,
            )
    return len(samples)
