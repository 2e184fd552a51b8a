"""Whether what was timed was the work: run after the timing, on the timers that gave the figures.

1. Order: behind a kernel that only waits, the launch must not have begun. One that has runs on another stream.
2. End: the same calls with the whole device waited for before the stop event take no longer. Else work was left behind.
3. Capture: every launch added as much to its CUDA graph as the others.
4. Results: inputs are replaced where they lie, outputs poisoned; what the timed calls compute then is compared with
   float64. A kernel that remembers results by address, or skips part of the output, does not survive this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from flashcore import inputs, reference, timing
from flashcore.compare import measure, tolerance
from flashcore.errors import AuditFailed
from flashcore.launch import Kernel
from flashcore.shapes import Shape

#: Device work after the stop event that is forgiven: the cost of looking, and a share of what was timed.
LATE_US, LATE_SHARE = 100.0, 0.1
#: How long the stream is kept waiting while the order is looked at, in clocks (some 20 ms) ..
WAIT_CLOCKS = 40_000_000
#: .. and how long a launch that does not wait has for showing itself, in seconds.
GRACE_S = 0.003
TRIES = 3
#: Different inputs of one timer.
FRESH = 3


def examine(kernel: Kernel, timers: Sequence[timing.Timer], shape: Shape, seed: int) -> dict[str, Any]:
    """What was found, for the document; ``timers`` are of ``kernel`` on ``shape``, their inputs drawn from ``seed``.

    Raises:
        AuditFailed: with what is wrong.
    """
    found: dict[str, Any] = {}
    timer = timers[0]
    if isinstance(timer, timing.Eager):
        found["ordered"] = _ordered(kernel, timer.sets[0])
    if isinstance(timer, timing.Events):
        found["late_us"] = _nothing_late(timer)
    graphs = [t for t in timers if isinstance(t, timing.Graph)]
    if graphs:
        found["nodes_per_launch"] = _even(graphs)
    first = seed + 1
    found["outputs_checked"] = sum(_right(kernel, t, shape, first + FRESH * n) for n, t in enumerate(timers))
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
                "its work began before the work queued ahead of it on its stream was done",
                cause="it is launched on another stream than the caller's, so its time means nothing",
                hint="launch on flashcore_args.stream",
            )
        if seen_in_time:
            return True
    return None


def _nothing_late(timer: timing.Events) -> float:
    """Microseconds by which waiting for the whole device is slower."""
    timed, late = timer.late_us()
    if late > LATE_US + LATE_SHARE * timed:
        raise AuditFailed(
            f"the device worked {late:.0f} us on after {timed:.0f} us of timed work",
            cause="the kernel's work is not all on the stream that was timed, or others use this GPU, too",
            hint="nvidia-smi shows who does; else launch on flashcore_args.stream",
        )
    return round(late, 1)


def _even(graphs: Sequence[timing.Graph]) -> int | None:
    """How many nodes each launch is; None if the driver does not tell."""
    seen = set().union(*(graph.nodes_per_launch for graph in graphs))
    if len(seen) > 1:
        counts = ", ".join(map(str, sorted(seen)))
        raise AuditFailed(
            f"its launches are not alike: they add {counts} nodes to a CUDA graph",
            cause="a launch must do the same work for the same shape at each call",
        )
    return next(iter(seen), None)


def _right(kernel: Kernel, timer: timing.Timer, shape: Shape, seed: int) -> int:
    """How many outputs were compared, of inputs drawn from ``seed`` on."""
    fresh = [inputs.draw(shape, seed + n, kernel.variant.device) for n in range(min(FRESH, len(timer.sets)))]
    for number, tensors in enumerate(timer.sets):
        for old, new in zip(tensors, fresh[number % len(fresh)]):  # noqa: B905 (Python 3.9)
            old.copy_(new)
    outputs = timer.outputs()
    for tensors, out in outputs:
        right = reference.attention64(*tensors)
        allowed = tolerance(reference.flash(*tensors), right, kernel.variant.tolerance)
        fault = allowed.refusal(measure(out, right))
        if fault:
            raise AuditFailed(
                f"the timed calls gave wrong results: {fault}",
                cause="inputs were replaced in place after the timing; a kernel must read them again at each call",
                hint="python -m flashcore check " + kernel.variant.name,
            )
    return len(outputs)
