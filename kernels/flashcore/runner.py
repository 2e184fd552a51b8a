"""The process that runs one candidate's kernels for :mod:`flashcore.separate`, which draws inputs, times and judges.

A kernel is native code: whatever is in this process it can change. So nothing here is believed. Outputs are compared in
the other process, and times are that one's clock's, or on a GPU bounded by it. Requests are JSON, but for ``go``: that
is inside what is timed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from flashcore import audit, check, inputs, reference, timing
from flashcore.apart import Code
from flashcore.build import Built
from flashcore.errors import FlashcoreError
from flashcore.extras import Scores, asked
from flashcore.launch import Kernel
from flashcore.shapes import Shape
from flashcore.variant import Variant

GO = b"go "
DTYPES = (torch.float16, torch.bfloat16, torch.bool, torch.float32)
_NO_NEW_PRIVILEGES, _CAPABILITIES_V3 = 38, 0x20080522

Set = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # q, k, v, out
#: The subject's calls on some sets: microseconds per launch, or 0 where the clock is the other process's.
Plan = Callable[[], float]


def main(connection: Connection) -> None:
    """Answer until the other side is gone."""
    os.setpgid(0, 0)  # all that this process starts is stopped and ended with it
    os.dup2(2, 1)  # stdout is the other process's
    _give_up_rights()
    served = Served()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        connection.send_bytes(served.answer(request))


def _give_up_rights() -> None:
    """Without them not even root reads the memory of a process that is not dumpable (:func:`separate.protect`)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)())


class Served:
    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._subjects: list[Any] = []  # kernels, and names of PyTorch's backends
        self._plans: dict[int, tuple[Plan, timing.Timer | None]] = {}

    def answer(self, request: bytes) -> bytes:
        try:
            if request.startswith(GO):
                return json.dumps(self._go(*map(int, request[len(GO) :].split()))).encode()
            what = json.loads(request)
            reply = getattr(self, "_do_" + what.pop("op"))(**what) or {}
        except FlashcoreError as e:
            reply = {"error": type(e).__name__, "message": e.message, "cause": e.cause, "hint": e.hint}
        except Exception as e:  # noqa: BLE001 - torch reports a failed kernel as a RuntimeError at the next sync
            reply = {"error": "LaunchFailed", "message": (str(e).strip().splitlines() or [type(e).__name__])[0]}
        return json.dumps(reply).encode()

    def _go(self, number: int, count: int) -> list[float]:
        if count == 0:
            return []
        plan, timer = self._plans[number]
        if count == 1 or not isinstance(timer, timing.Graph):
            return [plan() for _ in range(count)]
        for _ in range(count):  # for the other process's clock: nothing is waited for in between
            timer.work()
        torch.cuda.synchronize()
        return []

    # -------------------------------------------------------------------------------------------- what there is
    def _do_attach(self, size: int, path: str | None, ipc: list[Any] | None) -> None:
        if path is not None:
            self._memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        else:
            torch.cuda.init()
            words = [bytes.fromhex(w["hex"]) if isinstance(w, dict) else w for w in ipc or ()]
            storage = torch.UntypedStorage._new_shared_cuda(*words)  # noqa: SLF001 (what torch.multiprocessing calls)
            self._memory = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)[:size]
        self._plans.clear()

    def _do_load(self, built: dict[str, Any], threads: int, environment: dict[str, str]) -> dict[str, Any]:
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(threads)
        code = Code(Path(built["code"][0]), built["code"][1]) if built["code"] else None
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in built["variant"].items()}
        variant = Variant(source=Path(), summary="", **lists)
        library = Path(built["library"])
        self._subjects.append(
            Kernel(Built(variant, built["configuration"], library, library, {}, built["label"], code))
        )
        return {"subject": len(self._subjects) - 1}

    def _do_force(self, subject: int, tiling: int) -> dict[str, Any]:
        self._subjects.append(self._subjects[subject].forced(tiling))
        return {"subject": len(self._subjects) - 1}

    def _do_backend(self, name: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        self._subjects.append(name)
        return {"subject": len(self._subjects) - 1}

    def _tensor(self, at: int, dtype: int, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        typed = self._memory.view(DTYPES[dtype])
        return torch.as_strided(typed, size, stride, at // typed.element_size())

    # -------------------------------------------------------------------------------------------- calls
    def _do_call(self, subject: int, tensors: dict[str, Any], options: dict[str, Any]) -> None:
        given = {name: self._tensor(*one) for name, one in tensors.items()}
        q, slopes = given["q"], given.pop("slopes", None)
        if "window" in options:
            options["scores"] = Scores(tuple(options.pop("window")), options.pop("softcap"), slopes)
        call = asked(self._subjects[subject], options)
        call(given.pop("q"), given.pop("k"), given.pop("v"), **given)
        _synchronize(q)

    def _do_plan(
        self, number: int, subject: int, mode: str, sets: list[Any], call_us: float, shift: int, shape: dict[str, Any]
    ) -> dict[str, Any]:
        """``sets`` will be worked on together, each time that ``go`` names this ``number``."""
        self._plans.pop(number, None)
        runs, made = self._subjects[subject], [tuple(self._tensor(*one) for one in each) for each in sets]
        whole, device = Shape(**shape), made[0][0].device.type
        if isinstance(runs, str):
            with reference.backend(runs):
                theirs = reference.rival(runs, whole, device)
                plan, timer = _planned(theirs, mode, made, call_us, shift, gives=False)
            self._plans[number] = functools.partial(_in_backend, runs, plan), timer
        else:
            call = asked(runs, inputs.options(whole, device))
            plan, timer = _planned(call, mode, made, call_us, shift, gives=True)
            self._plans[number] = plan, timer
        graphs = timer.graphs if isinstance(timer, timing.Graph) else 1
        return {"launches": timer.launches if timer is not None else len(sets), "graphs": graphs}

    def _do_drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._plans.pop(number, None)

    # -------------------------------------------------------------------------------------------- a GPU's streams
    def _do_streams(self, subject: int, seed: int) -> dict[str, Any]:
        trials = check.streams(self._subjects[subject], seed)
        return {"trials": [[t.label, list(t.shape.as_dict().values()), t.fault] for t in trials]}

    def _do_audit(self, subject: int, number: int) -> dict[str, Any]:
        timer = self._plans[number][1]
        return {"found": audit.launches(self._subjects[subject], timer)} if timer is not None else {"found": {}}


def _planned(
    subject: Any, mode: str, sets: Sequence[Set], call_us: float, shift: int, *, gives: bool
) -> tuple[Plan, timing.Timer | None]:
    """``gives``: the subject takes an ``out``, and shall write into the sets'."""
    if mode == "wall":
        return functools.partial(_calls if gives else _calls_without_out, subject, sets), None
    tensors: list[inputs.Tensors] = [one[:3] for one in sets]
    if mode == "eager":
        eager = _Eager(subject, tensors)
        return functools.partial(_eager, eager, sets[0][3] if gives else None), eager
    outs = {id(one[0]): one[3] for one in sets}

    def into(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = subject(q, k, v, out=outs[id(q)])
        return out

    timer = timing.Graph(into if gives else subject, tensors, call_us, cold=mode == "cold", shift=0 if gives else shift)
    return timer.sample, timer


class _Eager(timing.Eager):
    """Keeps what its last call gave: outputs are allocated inside the timed call, as users' are. Before it are calls on
    inputs of its own, since code and data of the launch path leave the processor's caches while the other process draws
    new ones; and the GPU is idle."""

    out: torch.Tensor

    def __init__(self, subject: timing.Subject, sets: list[inputs.Tensors]) -> None:
        super().__init__(subject, sets)
        q, k, v = sets[0]
        self._others = q.clone(), k.clone(), v.clone()

    def sample(self) -> float:
        for _ in range(timing.EAGER_LEAD_IN):
            self.subject(*self._others)
            self.stop.record()
            self.stop.synchronize()
        return super().sample()

    def work(self) -> None:
        self.out = self.subject(*self.tensors)


def _eager(timer: _Eager, target: torch.Tensor | None) -> float:
    us = timer.sample()
    if target is not None:
        target.copy_(timer.out)
        torch.cuda.synchronize()
    return us


def _calls(subject: Any, sets: Sequence[Set]) -> float:
    for q, k, v, out in sets:
        subject(q, k, v, out=out)
    return 0.0


def _calls_without_out(subject: Any, sets: Sequence[Set]) -> float:
    for q, k, v, _ in sets:
        subject(q, k, v)
    return 0.0


def _in_backend(name: str, plan: Plan) -> float:
    with reference.backend(name) if name != "sdpa" else contextlib.nullcontext():
        return plan()


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()
