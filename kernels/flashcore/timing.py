"""One sample of one kernel's time, in microseconds per launch, in each of the ways that matter.

=====  ==========================================================================================================
wall   CPU: :mod:`flashcore.sampling`'s clock around one call, or several if they are short
hot    CUDA: a graph of launches on the same buffers, replayed between two events; no launch cost, warm caches
cold   CUDA: the same over so many buffer sets that each is gone from the L2 cache when its turn comes again
eager  CUDA: one call from Python between two events on an idle GPU, so that the launch path counts
=====  ==========================================================================================================

Where buffers happen to lie changes a kernel's time by a percent or two (cache slices, pages), for as long as they lie
there; so does how a graph was instantiated. So one timer after the other is made, each on other places, with new graphs
and outputs. Both sides of a comparison use the same inputs; in cold mode they have a rotation each, and exchange them
from one timer to the next (:class:`flashcore.sampling.Source`).
"""

from __future__ import annotations

import abc
import functools
import math
import warnings
from collections.abc import Callable

import torch

from flashcore import capture, inputs
from flashcore.errors import AuditFailed
from flashcore.shapes import Shape

#: What is timed: (q, k, v) -> output.
Subject = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

#: As many calls as take this long from Python make a graph: its replay lasts that long, or a fifth of it where kernels
#: are shorter than a call. Its own start, a few microseconds, is some 2 % of that then, of a kernel as of its rivals.
GRAPH_US = 1000.0
#: Cold, each launch has a set of its own, and graphs of 5 launches of 192 us differ by 3 % (an H200): a graph has at
#: least so many, as far as they take this long together.
COLD_LAUNCHES, COLD_US = 32, 6000.0
MAX_LAUNCHES = 200
MIN_SETS = 64
#: Calls before each run of eager samples: the launch path's code and data leave the processor's caches quickly.
EAGER_LEAD_IN = 4
#: Beyond this the launch path no longer counts, and samples are dear.
LONG_US = 200.0
#: The audit's calls last about this long together, so that work left behind adds up.
AUDIT_US = 2000.0
MAX_AUDIT_LAUNCHES = 200
AUDIT_REPEATS = 3
#: Places of the inputs in the modes whose caches are warm.
PLACES = 14


class Timer(abc.ABC):
    """A subject on some inputs. ``lead_in`` brings it to a steady state, ``sample`` measures."""

    launches = 1  # per sample

    def __init__(self, subject: Subject, sets: list[inputs.Tensors]) -> None:
        self.subject = subject
        self.sets = sets

    def lead_in(self) -> None:
        self.sample()

    @property
    def tensors(self) -> inputs.Tensors:
        return self.sets[0]

    @abc.abstractmethod
    def sample(self) -> float:
        """Microseconds per launch."""


class Events(Timer):
    def __init__(self, subject: Subject, sets: list[inputs.Tensors]) -> None:
        super().__init__(subject, sets)
        self.start, self.stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    @abc.abstractmethod
    def work(self) -> None:
        """What lies between the two events."""

    def sample(self) -> float:
        self.start.record()
        self.work()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) * 1000 / self.launches

    def late_us(self) -> tuple[float, float]:
        """Microseconds of some samples by the stream's events, and how much longer they take if the whole device is
        waited for before the stop event: work that a kernel left on another stream shows here."""
        count = max(1, min(MAX_AUDIT_LAUNCHES, round(AUDIT_US / max(self.sample() * self.launches, 1.0))))
        timed = min(self._timed(count, whole_device=False) for _ in range(AUDIT_REPEATS))
        return timed, min(self._timed(count, whole_device=True) for _ in range(AUDIT_REPEATS)) - timed

    def _timed(self, count: int, whole_device: bool) -> float:
        torch.cuda.synchronize()
        self.start.record()
        for _ in range(count):
            self.work()
        if whole_device:
            torch.cuda.synchronize()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) * 1000


class Eager(Events):
    def lead_in(self) -> None:
        if self.sample() < LONG_US:
            for _ in range(EAGER_LEAD_IN):
                self.sample()

    def work(self) -> None:
        self.subject(*self.tensors)


def launches(call_us: float, cold: bool) -> int:
    """Of one graph, where a call from Python takes so long."""
    each_us = max(call_us, 0.5)
    fewest = min(COLD_LAUNCHES, math.ceil(COLD_US / each_us)) if cold else 1
    return min(MAX_LAUNCHES, max(fewest, math.ceil(GRAPH_US / each_us)))


class Graph(Events):
    """Launches captured in graphs, as many as :func:`launches` says: ``cold``, each launch on the next set and
    each sample on the next graph; else each graph on one set. The graphs share one pool of memory, so that what a
    subject needs between its own kernels is there once.

    Raises:
        AuditFailed: the subject cannot be captured, or a call of it added nothing to the graph.
    """

    def __init__(
        self, subject: Subject, sets: list[inputs.Tensors], launch_us: float, cold: bool, shift: int = 0
    ) -> None:
        super().__init__(subject, sets)
        self._cold, self._turn = cold, 0
        #: Memory that lies before the outputs, so that they lie elsewhere than another graph's.
        self._shift, self._spacers = shift, []
        per_graph = launches(launch_us, cold)
        if not cold:
            order = [[tensors] * per_graph for tensors in sets]
        else:  # equal graphs, so that samples compare
            count = math.ceil(len(sets) / per_graph)
            per_graph = len(sets) // count
            order = [sets[i * per_graph : (i + 1) * per_graph] for i in range(count)]
        self.launches, self.graphs = per_graph, len(order)
        #: How many nodes one launch adds to a graph, every number seen; empty if the driver does not tell.
        self.nodes_per_launch: set[int] = set()
        self._outs: dict[int, tuple[inputs.Tensors, torch.Tensor]] = {}
        torch.cuda.empty_cache()  # what is cached for others cannot be had back during a capture
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs = [self._capture(part) for part in order]

    def _capture(self, sets: list[inputs.Tensors]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        counts: list[int | None] = []
        stream = _capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with warnings.catch_warnings(), torch.cuda.stream(stream):
                warnings.simplefilter("ignore")  # of an empty graph: that is an error here, below
                graph.capture_begin(pool=self._pool)
                try:
                    if self._shift:
                        self._spacers.append(torch.empty(self._shift, dtype=torch.uint8, device=sets[0][0].device))
                    counts.append(capture.nodes(stream.cuda_stream))
                    for tensors in sets:
                        self._outs[id(tensors)] = (tensors, self.subject(*tensors))
                        counts.append(capture.nodes(stream.cuda_stream))
                finally:
                    graph.capture_end()
        except RuntimeError as e:
            raise AuditFailed("its launches cannot be captured in a CUDA graph", cause=str(e).splitlines()[0]) from e
        torch.cuda.current_stream().wait_stream(stream)
        known = [n for n in counts if n is not None]
        if len(known) == len(counts):
            added = {after - before for before, after in zip(known, known[1:])}  # noqa: B905, RUF007 (Python 3.9)
            self.nodes_per_launch |= added
            if 0 in added:
                raise AuditFailed(
                    "a launch added nothing to the CUDA graph during its capture",
                    cause="the kernel was launched on another stream than the caller's, or not at all",
                    hint="launch on flashcore_args.stream in every call",
                )
        return graph

    def work(self) -> None:
        self._graphs[self._turn % len(self._graphs)].replay()
        self._turn += self._cold


@functools.cache
def _capture_stream() -> torch.cuda.Stream:
    """One for all captures, since libraries keep a workspace for each stream. (``torch.cuda.graph`` would do, but
    empties the allocator's caches each time, and there are thousands of graphs.)"""
    return torch.cuda.Stream()


def modes(device: str) -> tuple[str, ...]:
    """The ways to time on ``device``, the one that counts first."""
    return ("wall",) if device == "cpu" else ("hot", "cold", "eager")


def rotation(shape: Shape) -> int:
    """How many sets each of two rotations has: at least 64 and twice the L2 cache, as far as memory allows."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    wanted = max(MIN_SETS, math.ceil(2 * properties.L2_cache_size / shape.tensor_bytes))
    return max(2, affordable(shape, "cuda", 2 * wanted) // 2)


def affordable(shape: Shape, device: str, wanted: int) -> int:
    """``wanted`` sets of buffers, or what a quarter of the GPU's free memory (1 GiB of a CPU's) holds; at least 2."""
    room = torch.cuda.mem_get_info()[0] // 4 if device == "cuda" else 2**30
    return max(2, min(wanted, room // shape.tensor_bytes))
