"""Samples of a kernel's time, taken of a process that only makes the calls (:mod:`flashcore.separate`).

=========  =======================================================================================================
on a CPU   a sample is this process's clock around a request for as many calls as take :data:`WALL_US`, each with
           inputs of its own, less an empty request's time
on a GPU   a sample is the other process's, by events; a median is not less than what this process's clock allows
           (:func:`refuse_impossible`)
=========  =======================================================================================================

Each sample has new inputs, and some timed outputs are kept, to be compared with float64 afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from flashcore import inputs, separate, timing
from flashcore.errors import AuditFailed
from flashcore.separate import Kernel, Memory, Subject, rounded
from flashcore.shapes import Shape

#: Calls of a sample on a processor last so long: a request's own time, some 50 us, is known to a few.
WALL_US, MAX_CALLS = 2000.0, 64
#: Lead-in before each run of a processor's samples: the other side's OpenMP threads keep spinning for a while, and
#: would take a core from this one; 2 ms were enough on the machine where this was measured.
LEAD_IN_S = 0.005
#: Random numbers that inputs are pieces of, at a random place each time.
POOL, PIECES = 2**23, 2**16
#: .. at least so far from those of the next parts of large inputs, more than a row: a key and its value may lie a
#: multiple of POOL apart, and are never the same numbers (8-bit errors of a query add up where values follow keys).
APART = 512
#: Of samples whose inputs are those of the last one but for a row: who looks at a part of them is found out.
ALMOST_SAME = 0.25
#: Timed samples that are compared with float64, of each of the two kinds.
KEPT = 8
#: Calls of the audit's own timing on a GPU last about this long together.
LEAST_US, LEAST_REPEATS = 20_000.0, 3
#: A GPU that was idle runs at a lower clock for a while: what that timing refuses, it times again after such work, and
#: the fewest microseconds of all count. (An H100's first answer was 5.07 us where the kernel takes 4.27.)
HEAT_S, LEAST_ATTEMPTS = 0.5, 4
#: The least that events may show of what that timing does; and launches with warm caches, of those with cold ones.
EVENTS_OF_CLOCK, HOT_OF_COLD = 0.8, 0.5

_chance = random.SystemRandom()


class Sets:
    """Inputs in ``groups`` of places that lie together, each with an output for either side of a comparison."""

    def __init__(self, shape: Shape, device: str, groups: Sequence[int]) -> None:
        of_q, of_k = ((shape.B, heads, n, shape.D) for heads, n in ((shape.H, shape.S), (shape.kv_heads, shape.keys)))
        sizes = [of_q, of_k, of_k, of_q]
        places = [rounded(2 * math.prod(size)) for size in sizes]
        self.groups, self._count, self._sizes = list(groups), sum(groups), sizes
        #: Of q, k and v in the bytes of a set; and those of a set, and of an output.
        self._starts, self._each, self._out = [0, places[0], sum(places[:2])], sum(places[:3]), places[3]
        self.shape = shape
        self.memory = Memory(self._count * (self._each + 2 * self._out), device)
        self._pool, self._filled = _pool(device), set[int]()

    def _places(self, number: int, side: int) -> list[int]:
        out = self._count * self._each + (side * self._count + number) * self._out
        return [*(number * self._each + start for start in self._starts), out]

    def described(self, number: int, side: int) -> list[Any]:
        """q, k, v and the output, for a runner."""
        return [separate.described(at, size) for at, size in zip(self._places(number, side), self._sizes)]  # noqa: B905

    def tensors(self, number: int, side: int) -> list[torch.Tensor]:
        """q, k, v and the output."""
        made = []
        for at, size in zip(self._places(number, side), self._sizes):  # noqa: B905 (Python 3.9)
            made.append(self.memory.bytes[at : at + 2 * math.prod(size)].view(torch.float16).view(size))
        return made

    def renew(self, numbers: range, side: int) -> bool:
        """NaN in the outputs of the sets ``numbers``, which follow each other, then other inputs; whether they are the
        former ones but for a row of q, k or v."""
        first, last = self._places(numbers[0], side)[3], self._places(numbers[-1], side)[3] + self._out
        self.memory.bytes[first:last].view(torch.float16).fill_(math.nan)
        area = self.memory.bytes[numbers[0] * self._each : (numbers[-1] + 1) * self._each].view(torch.float16)
        almost = self._filled.issuperset(numbers) and _chance.random() < ALMOST_SAME
        if almost:
            which = _chance.randrange(3)
            D = self._sizes[which][3]
            at = self._starts[which] // 2 + D * _chance.randrange(math.prod(self._sizes[which]) // D)
            piece, each = _chance.randrange(PIECES), area.view(len(numbers), -1)
            each[:, at : at + D] = self._pool[piece : piece + D * len(each)].view(len(each), D)
        else:
            parts = area.split(len(self._pool) - PIECES)
            for part, piece in zip(parts, pieces(len(parts))):  # noqa: B905 (Python 3.9)
                part.copy_(self._pool[piece : piece + len(part)])
            self._filled.update(numbers)
        if area.is_cuda:
            torch.cuda.synchronize()
        return almost


def pieces(count: int) -> list[int]:
    """Random places in the pool, of ``count`` parts in turn."""
    places = range(_chance.randrange(APART), PIECES, APART)
    order = _chance.sample(places, len(places))
    return [order[number % len(order)] for number in range(count)]


@functools.cache
def _pool(device: str) -> torch.Tensor:
    """Random numbers that inputs are pieces of, other ones in each process."""
    generator = torch.Generator().manual_seed(_chance.getrandbits(63))
    return torch.randn(POOL + PIECES, generator=generator).half().to(device)


class Reservoir:
    """Some of all timed samples, each as likely as the others, to be compared later (reservoir sampling)."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most  # of each of two kinds: new inputs, and almost the same
        self._seen = [0, 0]
        self._samples: list[list[tuple[inputs.Tensors, torch.Tensor]]] = [[], []]

    @contextlib.contextmanager
    def sample(self, sets: Sets, numbers: Sequence[int], side: int, almost: bool) -> Iterator[None]:
        """Maybe keep one of the sets ``numbers``: its inputs as they are before the calls, which could write into them,
        too, and its output right after."""
        kind = self._samples[almost]
        self._seen[almost] += 1
        place = len(kind) if len(kind) < self._most else _chance.randrange(self._seen[almost])
        if place >= self._most:
            yield
            return
        q, k, v, out = sets.tensors(_chance.choice(numbers), side)
        tensors = q.clone(), k.clone(), v.clone()
        yield
        kind[place : place + 1] = [(tensors, out.clone())]

    def all(self) -> list[tuple[inputs.Tensors, torch.Tensor]]:
        return self._samples[0] + self._samples[1]


class Timer:
    """One of a :class:`Source`: as :class:`flashcore.timing.Timer`, of calls in the other process."""

    def __init__(self, source: Source, numbers: range, side: int, mode: str, shift: int) -> None:
        self._source, self._side, self._numbers, self._turn = source, side, numbers, 0
        self._runner, self.plan = source.subject.runner, source.subject.runner.number()
        self._order = list(numbers)
        if mode == "cold":
            _chance.shuffle(self._order)
        sets = [source.sets.described(number, side) for number in self._order]
        reply = self._runner.ask("plan", number=self.plan, subject=source.subject.number, mode=mode, sets=sets,
                                 call_us=source.call_us, shift=shift, shape=source.sets.shape.as_dict())  # fmt: skip
        self.launches, self._graphs = max(1, reply.number("launches")), max(1, reply.number("graphs"))
        self._wall, self._cold = mode == "wall", mode == "cold"

    def lead_in(self) -> None:
        """Calls on the inputs there are, to come to a steady state."""
        end = time.perf_counter() + LEAD_IN_S * self._wall
        self._go()
        while time.perf_counter() < end:
            self._go()

    def _go(self, count: int = 1) -> tuple[float, list[float]]:
        self._turn += count
        return self._runner.go(self.plan, count)

    def _worked_on(self) -> Sequence[int]:
        """The sets of the next request: in cold mode those of the graph whose turn it is."""
        if not self._cold:
            return self._order
        start = self._turn % self._graphs * self.launches
        return self._order[start : start + self.launches]

    def sample(self) -> float:
        """Microseconds per launch."""
        sets, kept = self._source.sets, self._source.kept
        almost = sets.renew(self._numbers, self._side)
        with kept.sample(sets, self._worked_on(), self._side, almost) if kept else contextlib.nullcontext():
            took, said = self._go()
        if not self._wall:
            return said[0] if said else math.nan
        return max(took - self._runner.empty_us, 0.01 * took) / self.launches

    def least_us(self, heat_s: float = 0.0) -> float:
        """Microseconds per launch by our clock, of many at once, after ``heat_s`` of the same launches."""
        self._source.sets.renew(self._numbers, self._side)
        once = max(self._go()[0] - self._runner.empty_us, 1.0)
        count = max(2, round(LEAST_US / once))
        end = time.perf_counter() + heat_s
        while time.perf_counter() < end:
            self._go(count)
        took = min(self._go(count)[0] for _ in range(LEAST_REPEATS))
        return max(took - self._runner.empty_us, 0.0) / count / self.launches

    def audit(self) -> dict[str, Any]:
        reply = self._runner.ask("audit", subject=self._source.subject.number, number=self.plan)
        return reply["found"] if isinstance(reply.get("found"), dict) else {}

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._runner.alive:
                self._runner.ask("drop", numbers=[self.plan])


class Source:
    """Timers of ``subject`` in turn, each on other places of ``sets``; ``kept`` gets some of what they gave.

    Raises:
        AuditFailed: (:meth:`timer`) the subject's launches cannot be captured.
    """

    def __init__(self, mode: str, subject: Subject, sets: Sets, kept: Reservoir | None = None) -> None:
        self.mode, self.subject, self.sets, self.kept = mode, subject, sets, kept
        subject.runner.attach(sets.memory)
        self.launches, self.call_us = 1, 0.0
        first = Timer(self, range(1), 0, "wall" if mode == "wall" else "eager", 0)
        #: Of one call, launch included.
        self.call_us = min([first.sample() for _ in range(8)][3:])

    def in_step(self, call_us: float, most: float = math.inf) -> None:
        """Launch as often in a sample as a subject of which a call takes ``call_us``, but ``most`` times as often as
        alone at most: what a graph's own start adds to a launch is then the same for both."""
        self.call_us = min(self.call_us, max(call_us, self.call_us / most))

    def timer(self, replicate: int, side: int) -> Timer:
        """A timer, captured and warmed up; ``side`` (0, 1, ..) tells those of a replicate apart."""
        first, groups = 0, self.sets.groups
        if self.mode == "cold":
            chosen = (replicate + side) % len(groups)
            numbers = range(sum(groups[:chosen]), sum(groups[: chosen + 1]))
        else:
            calls = 1
            if self.mode == "wall":
                calls = min(groups[0], MAX_CALLS, max(1, math.ceil(WALL_US / max(self.call_us, 1.0))))
            first = replicate % (groups[0] - calls + 1)
            numbers = range(first, first + calls)
        shift = _chance.randrange(1, 1 + 2 * self.sets.tensors(0, 0)[0].numel())
        made = Timer(self, numbers, side % 2, self.mode, shift)
        self.launches = made.launches
        for _ in range(3):
            made.lead_in()
        return made


def places(shape: Shape, device: str, mode: str, count: int = timing.PLACES) -> Sets:
    """Inputs in ``count`` places; in cold mode, in two rotations."""
    if mode == "wall":  # short calls are timed as many together
        count = max(count, min(MAX_CALLS, 2**25 // shape.tensor_bytes))
    if mode != "cold":
        return Sets(shape, device, [timing.affordable(shape, device, count)])
    each = timing.rotation(shape)
    return Sets(shape, device, [each, each])


def refuse_impossible(kernel: Kernel, shape: Shape, mode: str, p50_us: float) -> float:
    """Microseconds that a launch takes on a GPU by this process's clock: events are read in the kernel's. Launches of a
    graph, so that it holds for single calls, too; and half of what launches that have inputs of their own take, since
    those of a ``hot`` timer's graph have not.

    Raises:
        AuditFailed: a median of ``p50_us`` is below that.
    """
    found = kernel.least.setdefault(shape, {})
    for attempt in range(LEAST_ATTEMPTS):
        if attempt or not found:
            for way in ("hot", "cold"):
                timer = Source(way, kernel, places(shape, kernel.variant.device, way, 2)).timer(0, 0)
                found[way] = min(found.get(way, math.inf), timer.least_us(HEAT_S * bool(attempt)))
        least = max(EVENTS_OF_CLOCK * found["cold" if mode == "cold" else "hot"], HOT_OF_COLD * found["cold"])
        if p50_us >= least:
            return round(least, 4)
    raise AuditFailed(
        f"its median is {p50_us:.2f} us, but another process measured at least {least:.2f} us per launch",
        cause="the times from its process are wrong, or the kernel reused results inside one graph",
    )
