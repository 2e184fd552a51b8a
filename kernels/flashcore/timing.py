"""One sample of one kernel's time, in microseconds per launch, in each of the ways that matter.

=====  ==========================================================================================================
wall   CPU: the clock around one call, output allocation included
hot    CUDA: a graph of launches on the same buffers, replayed between two events; no launch cost, warm caches
cold   CUDA: the same over so many buffer sets that each is gone from the L2 cache when its turn comes again
eager  CUDA: one call from Python between two events on an idle GPU, so that the launch path counts
=====  ==========================================================================================================
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from flashcore import inputs
from flashcore.shapes import Shape

#: What is timed: (q, k, v) -> output.
Subject = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

#: A graph replay lasts about this long, so that its own start (a few microseconds) is below 1 %.
GRAPH_US = 1000.0
MAX_LAUNCHES = 200
MIN_SETS = 64
#: Lead-in before each run of samples on a CPU. PyTorch's OpenMP threads keep spinning after a call and would take a
#: core from whatever runs next; 2 ms were enough on the machine where this was measured.
CPU_LEAD_IN_S = 0.005


class Timer:
    """A subject on its own inputs. ``lead_in`` brings it to its steady state, ``sample`` measures."""

    launches = 1  # per sample

    def __init__(self, subject: Subject, sets: list[inputs.Tensors]) -> None:
        self.subject = subject
        self.sets = sets

    def lead_in(self) -> None:
        self.sample()

    def sample(self) -> float:
        raise NotImplementedError

    def outputs(self) -> list[tuple[inputs.Tensors, torch.Tensor]]:
        """Run once and return inputs with the outputs they gave, complete or not, for the audit."""
        raise NotImplementedError


class Wall(Timer):
    def lead_in(self) -> None:
        end = time.perf_counter() + CPU_LEAD_IN_S
        self.sample()
        while time.perf_counter() < end:
            self.sample()

    def sample(self) -> float:
        q, k, v = self.sets[0]
        started = time.perf_counter_ns()
        self.subject(q, k, v)
        return (time.perf_counter_ns() - started) / 1000

    def outputs(self) -> list[tuple[inputs.Tensors, torch.Tensor]]:
        return _calls(self.subject, self.sets[0])


class Events(Timer):
    def __init__(self, subject: Subject, sets: list[inputs.Tensors]) -> None:
        super().__init__(subject, sets)
        self.start, self.stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def work(self) -> None:
        raise NotImplementedError

    def sample(self) -> float:
        self.start.record()
        self.work()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) * 1000 / self.launches

    def late_us(self) -> tuple[float, float]:
        """Microseconds of one sample by the event, and how long the device still worked after it: a kernel that
        returns before its work is done (on another stream) shows here."""
        torch.cuda.synchronize()
        timed = self.sample() * self.launches
        stopped = time.perf_counter_ns()
        torch.cuda.synchronize()
        return timed, (time.perf_counter_ns() - stopped) / 1000


class Eager(Events):
    def work(self) -> None:
        self.subject(*self.sets[0])

    def outputs(self) -> list[tuple[inputs.Tensors, torch.Tensor]]:
        return _calls(self.subject, self.sets[0])


class Graph(Events):
    """Launches over all sets in turn, captured in graphs of about :data:`GRAPH_US` each."""

    def __init__(self, subject: Subject, sets: list[inputs.Tensors], launch_us: float) -> None:
        super().__init__(subject, sets)
        per_graph = min(MAX_LAUNCHES, math.ceil(GRAPH_US / max(launch_us, 0.5)))
        if len(sets) == 1:
            order = [sets * per_graph]
        else:  # equal graphs, so that samples compare: sets that do not fill the last one are dropped
            per_graph = min(per_graph, len(sets))
            order = [sets[i : i + per_graph] for i in range(0, len(sets) - per_graph + 1, per_graph)]
        self.launches = per_graph
        self._outs: dict[int, tuple[inputs.Tensors, torch.Tensor]] = {}
        self._graphs = [self._capture(part) for part in order]
        self._next = 0

    def _capture(self, sets: list[inputs.Tensors]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for tensors in sets:
                self._outs[id(tensors)] = (tensors, self.subject(*tensors))
        return graph

    def work(self) -> None:
        self._graphs[self._next].replay()
        self._next = (self._next + 1) % len(self._graphs)

    def outputs(self) -> list[tuple[inputs.Tensors, torch.Tensor]]:
        kept = list(self._outs.values())
        for _, out in kept:
            out.fill_(math.nan)
        for graph in self._graphs:
            graph.replay()
        torch.cuda.synchronize()
        return [kept[i] for i in sorted({0, len(kept) // 2, len(kept) - 1})]


def _calls(subject: Subject, tensors: inputs.Tensors) -> list[tuple[inputs.Tensors, torch.Tensor]]:
    """What single calls return. Each output is poisoned before its memory goes back to the allocator, which gives it
    to the next call: a kernel that remembers addresses leaves the poison there."""
    kept = []
    for _ in range(3):
        out = subject(*tensors)
        kept.append((tensors, out.clone()))
        out.fill_(math.nan)
        del out
    return kept


def modes(device: str) -> tuple[str, ...]:
    """The ways to time on ``device``, the one that counts first."""
    return ("wall",) if device == "cpu" else ("hot", "cold", "eager")


def make(mode: str, subject: Subject, shape: Shape, seed: int, device: str) -> Timer:
    """A timer of ``subject`` with inputs of its own, compiled, captured and warmed up."""
    first = inputs.draw(shape, seed, device)
    if mode == "wall":
        return _warm(Wall(subject, [first]))
    eager = _warm(Eager(subject, [first]))
    if mode == "eager":
        return eager
    launch_us = min(eager.sample() for _ in range(5))
    if mode == "hot":
        return _warm(Graph(subject, [first], launch_us))
    return _warm(Graph(subject, _rotation(shape, first), launch_us))


def _warm(timer: Timer) -> Timer:
    for _ in range(3):
        timer.lead_in()
    return timer


def _rotation(shape: Shape, first: inputs.Tensors) -> list[inputs.Tensors]:
    """Copies of ``first``, at least 64 and twice the L2 cache, as far as a quarter of the free memory allows."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    wanted = max(MIN_SETS, math.ceil(2 * properties.L2_cache_size / shape.tensor_bytes))
    room: int | None = torch.cuda.mem_get_info()[0] // 4 // shape.tensor_bytes
    count = max(2, min(wanted, room or 0))
    return [first, *((first[0].clone(), first[1].clone(), first[2].clone()) for _ in range(count - 1))]
