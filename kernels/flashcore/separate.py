"""A candidate's kernels in a process of their own, judged from this one, which never loads them.

A kernel is native code, and in its own process it can replace the clock, the check or the audit. So that process
(:mod:`flashcore.runner`) only calls kernels on memory that both share. Inputs, clock and verdict are here
(:mod:`flashcore.sampling`, :mod:`flashcore.check`).

What each kind of cheating comes to is in docs/kernels.md, "What a kernel cannot do".
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any

import torch

from flashcore import errors, runner
from flashcore.build import Built
from flashcore.errors import FlashcoreError, LaunchFailed
from flashcore.extras import Scores
from flashcore.shapes import Shape

#: What the other process must know of a variant in order to launch it.
OF_A_LAUNCH = (
    "name", "device", "dtypes", "head_dims", "causal", "grouped_heads", "lower_right", "masks", "scores", "window",
    "packed", "pages", "alignment", "told", "eight_bits",
)  # fmt: skip
#: An empty request takes no longer than this, whatever was measured: it is taken off each sample.
MAX_EMPTY_US, EMPTIES = 200.0, 101
#: How long a process may take to start, and to answer.
START_S, ANSWER_S = 120.0, 300.0
MAX_REPLY, MAX_TEXT = 2**20, 300
#: Between tensors of the shared memory; and where that is, if there is room: no disk is behind it.
ALIGNED, SHARED = 512, "/dev/shm"  # noqa: S108

_live: list[Runner] = []
_PR_SET_DUMPABLE = 4


def protect() -> None:
    """From now on no other process of this user reads or writes this one's memory (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@atexit.register
def end() -> None:
    """End all candidates' processes. Before results are written: nobody is left to change them."""
    while _live:
        _live[-1].close()


class Reply(dict[str, Any]):
    """An answer of a candidate's process, which the candidate may have forged."""

    def number(self, name: str) -> int:
        """Raises LaunchFailed: there is no whole number of that name."""
        if type(value := self.get(name)) is not int:
            raise LaunchFailed(f"the reply of the kernel's process has no {name}")
        return value


def _start(process: multiprocessing.process.BaseProcess) -> None:
    """Again, if the process that forks them is about to end: a candidate before, which is its child, may have ended it.

    Raises:
        Unavailable: no process can be started.
    """
    for wait_s in (0.1, 0.5, 2.0, None):
        try:
            process.start()
            break
        except OSError as e:
            if wait_s is None:
                raise errors.Unavailable("the kernel's process does not start", cause=str(e)) from e
            time.sleep(wait_s)


class Runner:
    """The process of one candidate, or of PyTorch's backends. Raises: Unavailable, if it does not come up."""

    def __init__(self, device: str, trusted: bool = False) -> None:
        self.device, self._stops = device, device == "cpu" and not trusted
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["flashcore.runner"])
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=runner.main, args=(theirs,), daemon=True)
        _start(self._process)
        theirs.close()
        assert self._process.pid is not None  # noqa: S101 (it was started)
        self._pid = self._process.pid
        self._threads = torch.get_num_threads()
        _live.append(self)
        self._numbers = iter(range(2**31))
        self._memory: Memory | None = None
        #: Of an empty request, microseconds; taken before anything of the candidate's is in its process.
        self._send(runner.GO + b"0 0", START_S)
        for _ in range(EMPTIES // 5):
            self.go(0, 0)
        self.empty_us = min(MAX_EMPTY_US, statistics.median(self.go(0, 0)[0] for _ in range(EMPTIES)))

    # -------------------------------------------------------------------------------------------- requests
    def ask(self, op: str, **what: Any) -> Reply:
        """Raises: FlashcoreError, its own or what it answered."""
        with self._awake():
            reply = self._send(json.dumps({"op": op, **what}).encode(), ANSWER_S)
        return Reply(reply if isinstance(reply, dict) else {})

    def go(self, plan: int, count: int = 1) -> tuple[float, list[float]]:
        """Microseconds by our clock, and what the process says of each time. Raises: FlashcoreError."""
        request = runner.GO + b"%d %d" % (plan, count)
        started = time.perf_counter_ns()
        with self._awake():
            reply = self._send(request, ANSWER_S)
            took = (time.perf_counter_ns() - started) / 1000
        if not isinstance(reply, list) or not all(isinstance(us, (int, float)) and math.isfinite(us) for us in reply):
            raise LaunchFailed("the reply of the kernel's process has no times")
        return took, [float(us) for us in reply]

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        """Meanwhile the process runs. On a processor it is stopped at all other times, so that its threads neither work
        ahead, nor finish late, nor slow a rival down."""
        if self._stops:
            self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            if self._stops:
                self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def _send(self, request: bytes, patience_s: float) -> Any:
        try:
            self._ours.send_bytes(request)
            # A process that it started may hold the connection open when it is gone.
            if not (ready := connection.wait([self._ours, self._process.sentinel], patience_s)):
                raise LaunchFailed(f"the kernel did not return within {patience_s:.0f} s")
            if self._ours not in ready:
                raise EOFError
            reply = json.loads(self._ours.recv_bytes(MAX_REPLY))
        except (EOFError, OSError):
            self._process.join(5)
            raise LaunchFailed(f"the kernel's process ended, exit code {self._process.exitcode}") from None
        except (ValueError, RecursionError):
            raise LaunchFailed("the kernel's process sent an invalid reply") from None
        if isinstance(reply, dict) and "error" in reply:
            raise _error(reply)
        return reply

    @property
    def alive(self) -> bool:
        return self in _live

    def close(self) -> None:
        """End it with all that it started."""
        if self in _live:
            _live.remove(self)
        self._signal(signal.SIGKILL)
        self._process.kill()
        self._process.join(10)
        self._ours.close()

    # -------------------------------------------------------------------------------------------- subjects
    def kernel(self, built: Built) -> Kernel:
        """The kernel of a library, loaded there. Raises: as of :class:`flashcore.launch.Kernel`."""
        about = {
            "variant": {name: getattr(built.variant, name) for name in OF_A_LAUNCH},
            "configuration": built.configuration,
            "library": str(built.library),
            "label": built.label,
            "code": [str(built.code.file), built.code.kernel] if built.code else None,
        }
        reply = self.ask("load", built=about, threads=self._threads, environment=dict(os.environ))
        return Kernel(self, reply.number("subject"), built)

    def forced(self, kernel: Kernel, tiling: int) -> Kernel:
        """As :meth:`flashcore.launch.Kernel.forced`."""
        reply = self.ask("force", subject=kernel.number, tiling=tiling)
        return Kernel(self, reply.number("subject"), kernel.built)

    def backend(self, name: str) -> Subject:
        return Subject(self, self.ask("backend", name=name, threads=self._threads).number("subject"))

    def attach(self, memory: Memory) -> None:
        if memory is not self._memory:
            self.ask("attach", **memory.handle)
            self._memory = memory

    def number(self) -> int:
        """Of a plan, not given out before."""
        return next(self._numbers)


def _error(reply: dict[str, Any]) -> FlashcoreError:
    kind = getattr(errors, str(reply["error"]), LaunchFailed)
    kind = kind if isinstance(kind, type) and issubclass(kind, FlashcoreError) else LaunchFailed
    texts = [_printable(reply.get(name)) for name in ("message", "cause", "hint")]
    return kind(texts[0] or "the kernel's process refused the request", texts[1], texts[2])


def _printable(text: Any) -> str | None:
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT]) if isinstance(text, str) else None


class Memory:
    """Bytes that this process and some runners see."""

    def __init__(self, size: int, device: str) -> None:
        self.size = size
        if device == "cpu":
            fits = os.path.isdir(SHARED) and shutil.disk_usage(SHARED).free > 2 * size
            folder = SHARED if fits else None
            with tempfile.NamedTemporaryFile(dir=folder, prefix="flashcore-", delete=False) as file:
                file.truncate(size)
            self._path: str | None = file.name
            self.bytes = torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
            self.handle: dict[str, Any] = {"size": size, "path": file.name, "ipc": None}
            return
        self._path = None
        # The driver opens an expandable segment of another process with ptrace's rights, which `protect` takes away.
        set_options = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # noqa: SLF001 (no public name)
        set_options = set_options or torch._C._cuda_cudaCachingAllocator_set_allocator_settings  # noqa: SLF001
        set_options("expandable_segments:False")
        self._pool = torch.cuda.MemPool()  # what is shared is a whole allocation: nothing else may lie in it
        with torch.cuda.use_mem_pool(self._pool):
            self.bytes = torch.empty(size, dtype=torch.uint8, device=device)
        words = self.bytes.untyped_storage()._share_cuda_()
        ipc = [{"hex": w.hex()} if isinstance(w, bytes) else w for w in words]
        self.handle = {"size": size, "path": None, "ipc": ipc}

    def __del__(self) -> None:
        if getattr(self, "_path", None):
            with contextlib.suppress(OSError):
                os.unlink(str(self._path))


def described(
    at: int, size: Sequence[int], stride: Sequence[int] = (), dtype: torch.dtype = torch.float16
) -> list[Any]:
    """Of a tensor whose element 0 is at byte ``at``, for the runner; contiguous without a ``stride``."""
    contiguous = [math.prod(size[n:]) for n in range(1, len(size) + 1)]
    return [at, runner.DTYPES.index(dtype), list(size), list(stride) or contiguous]


def rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class Subject:
    """What a runner times by its number there."""

    def __init__(self, owner: Runner, number: int) -> None:
        self.runner, self.number = owner, number


class Kernel(Subject):
    """A kernel in another process, called as :class:`flashcore.launch.Kernel` is. Raises: as that one."""

    def __init__(self, owner: Runner, number: int, built: Built) -> None:
        super().__init__(owner, number)
        self.variant, self.built, self.label = built.variant, built, built.label
        self._memory: Memory | None = None
        #: Of shapes, microseconds of a launch by this process's clock (:func:`sampling.refuse_impossible`).
        self.least: dict[Shape, dict[str, float]] = {}

    def for_shape(self, _shape: Shape) -> Kernel:
        return self

    def kernels(self) -> list[Kernel]:
        return [self]

    def forced(self, tiling: int) -> Kernel:
        return self.runner.forced(self, tiling)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        scores: Scores | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """All that the tensors' storages hold is taken there and back, what lies beside the tensors, too."""
        given = {"q": q, "k": k, "v": v, "out": torch.empty_like(q) if out is None else out, "mask": mask}
        if scores is not None:
            given["slopes"] = scores.slopes
            options |= {"window": scores.window, "softcap": scores.softcap}
        there = {name: tensor for name, tensor in given.items() if tensor is not None}
        tensors = list(there.values())
        placed: dict[int, tuple[int, torch.Tensor]] = {}
        total = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in placed:
                held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                placed[storage.data_ptr()] = total, held
                total += rounded(held.numel())
        if self._memory is None or self._memory.size < total:
            self._memory = Memory(total, self.variant.device)
        self.runner.attach(self._memory)
        for at, held in placed.values():
            self._memory.bytes[at : at + held.numel()].copy_(held)
        where = [placed[t.untyped_storage().data_ptr()][0] + t.storage_offset() * t.element_size() for t in tensors]
        asked = {n: described(at, t.shape, t.stride(), t.dtype) for at, (n, t) in zip(where, there.items())}  # noqa: B905
        if q.is_cuda:
            torch.cuda.synchronize()
        self.runner.ask("call", subject=self.number, tensors=asked, options=options)
        for at, held in placed.values():
            held.copy_(self._memory.bytes[at : at + held.numel()])
        return there["out"]

    def extended(self, extras: tuple[Scores], *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        """As :meth:`flashcore.launch.Kernel.extended`, of scores alone."""
        return self(*tensors, scores=extras[0], **options)

    def streams(self, seed: int) -> list[list[Any]]:
        """(label, sizes, fault) of :func:`flashcore.check.streams`, which needs the kernel's own process."""
        trials = self.runner.ask("streams", subject=self.number, seed=seed).get("trials")
        if not isinstance(trials, list) or not all(map(_is_trial, trials)):
            raise LaunchFailed("the reply of the kernel's process has no trials")
        return trials


def _is_trial(value: Any) -> bool:
    if not isinstance(value, list) or [type(part) for part in value[:2]] != [str, list] or len(value) != 3:
        return False
    return all(type(size) in (int, type(None)) for size in value[1]) and isinstance(value[2], (str, type(None)))
