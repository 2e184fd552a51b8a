"""``python -m flashcore tune VARIANT --space | --build | --serve``: what a search over configurations asks.

--space   prints the parameters and every legal configuration, as one JSON object
--build   compiles the configuration that the environment holds (``TILE_M=64``) for this machine's GPU alone
--serve   checks and times one configuration after the other, in one process: a JSON object a line, on stdin and stdout

A request names its configuration by ``params``, a shape by ``case``, as ``--shape`` takes it, and a ``seed``. ``warm``
prepares for some ``cases``. ``check`` compares the cases' shapes and a few odd ones with float64; with ``"final":
true`` it is the whole of :mod:`flashcore.check`, and the resources on the card these kernels are for are looked at,
too. ``bench`` gives microseconds per launch; what the timed launches wrote is checked afterwards. ``turns`` times
several configurations in turns with each other, in A B C C B A, in as many places of the inputs as there are, and
audits each.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from flashcore import build, shapes, toolchain
from flashcore.errors import AuditFailed, FlashcoreError, Unavailable, UsageError
from flashcore.shapes import Shape
from flashcore.variant import Configuration, Variant

if TYPE_CHECKING:  # torch is needed to serve only
    from flashcore import inputs
    from flashcore.check import Trial
    from flashcore.roundings import Expected
    from flashcore.sampling import Sets, Timer
    from flashcore.separate import Kernel, Runner

#: Parameters that are there to show what they cost, or that follow from the shape: no dimensions of a search.
SETTLED = {"flagship": ("SWIZZLE", "HEAD_DIM", "BFLOAT16")}
#: Loaded libraries and drawn inputs that are kept; the default configuration comes again and again.
MAX_KERNELS, MAX_CASES = 32, 8
#: Places of the inputs that a bench uses, and the fewest samples worth another place.
BENCH_PLACES, SAMPLES_PER_PLACE = 4, 5
#: Times as long a slow configuration's graphs may last in a trial, to have as many launches as others'.
LONGER_GRAPHS = 4.0
#: Timed outputs that are compared with float64, of each of two kinds.
KEPT = 1
#: Turns in one place: there and back. Samples of each turn, of which the median counts.
TURNS_PER_PLACE, RUN = 2, 2
#: Resources that must be 0, on the GPU here and on the card these kernels are for.
FORBIDDEN = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")


# ------------------------------------------------------------------------------------------------ space and build
def space(variant: Variant, fixed: Mapping[str, int]) -> dict[str, Any]:
    """The parameters that vary, with ``fixed`` ones at one value, and all their legal combinations, the default first.

    Raises:
        UsageError: ``fixed`` is not legal.
    """
    default = variant.configure(fixed)
    settled = {**{name: default[name] for name in SETTLED.get(variant.name, ())}, **fixed}
    values = {p.name: [settled[p.name]] if p.name in settled else list(p.values) for p in variant.parameters}
    found = [c for c in variant.space(settled) if c != default]
    return {
        "parameters": {name: {"values": v, "default": default[name]} for name, v in values.items()},
        "configurations": [default, *found],
        "default": default,
    }


def from_environment(variant: Variant, env: Mapping[str, str]) -> Configuration:
    """The parameters that are variables of ``env``, the others at their defaults.

    Raises:
        UsageError: one is no number, or they are not legal.
    """
    chosen = {}
    for parameter in variant.parameters:
        text = env.get(parameter.name)
        if text is not None:
            if not text.lstrip("-").isdigit():
                raise UsageError(f"{parameter.name}={text} in the environment is not a number")
            chosen[parameter.name] = int(text)
    return variant.configure(chosen)


def compiled(variant: Variant, params: Mapping[str, int], archs: str | None = None) -> build.Built:
    """One configuration for one architecture: that of ``archs``, else ``$FCCTL_CUDA_ARCH``, else this GPU's.

    Raises:
        UsageError, Unavailable, BuildFailed: as of :func:`flashcore.build.build`.
    """
    chosen = archs or os.environ.get("FCCTL_CUDA_ARCH") or toolchain.gpu_arch() or toolchain.TARGET_ARCH
    return build.build(variant, params, archs=chosen)


# ------------------------------------------------------------------------------------------------ serve
class Service:
    """Answers requests about one variant; ``mode`` is a way to time of :func:`flashcore.timing.modes`."""

    def __init__(self, variant: Variant, mode: str | None = None) -> None:
        """
        Raises:
            UsageError: there is no such mode.
        """
        import torch

        from flashcore import separate, timing

        separate.protect()
        self.variant = variant
        known = timing.modes(variant.device)
        if mode is not None and mode not in known:
            raise UsageError(f"{mode!r} is not a timing mode on {variant.device}", hint="known: " + ", ".join(known))
        self.mode = mode or known[0]
        self._kernels: OrderedDict[tuple[int, ...], Kernel] = OrderedDict()
        self._sets: OrderedDict[Shape, Sets] = OrderedDict()
        self._expected: OrderedDict[tuple[Any, ...], tuple[inputs.Tensors, Expected]] = OrderedDict()
        #: Of a call, microseconds: of all configurations that were timed.
        self._fastest: dict[Shape, float] = {}
        if variant.device == "cuda":  # the processor draws inputs only, while all of it compiles: threads would wait
            torch.set_num_threads(1)
        #: Where the kernels are. It starts before any trial's time is taken, and beside the start of CUDA.
        self._runner: Future[Runner] = ThreadPoolExecutor(1).submit(separate.Runner, variant.device)
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "ready": lambda _: {},
            "warm": self._warm,
            "check": self._check,
            "bench": self._bench,
            "turns": self._turns,
        }

    def answer(self, request: Any) -> dict[str, Any]:
        """The reply to one request; never raises."""
        number = request.get("id") if isinstance(request, Mapping) else None
        operation = self._operations.get(str(request.get("op"))) if isinstance(request, Mapping) else None
        if operation is None:
            known = ", ".join(self._operations)
            return {
                "id": number,
                "ok": False,
                "state": "failed",
                "reason": f"invalid request: op must be one of {known}",
            }
        try:
            return {"id": number, "ok": True, **operation(request)}
        except Wrong as e:
            return {"id": number, "ok": False, "state": "wrong", "reason": str(e)}
        except AuditFailed as e:
            return {"id": number, "ok": False, "state": "wrong", "reason": _flat(e)}
        except Unavailable as e:
            return {"id": number, "ok": False, "state": "unavailable", "reason": _flat(e)}
        except Exception as e:  # noqa: BLE001 - a trial's fault, whatever it is; the search continues
            return {"id": number, "ok": False, "state": "failed", "reason": _flat(e)}

    def _warm(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start CUDA and its libraries, and have inputs and right results before the first configuration comes."""
        for shape in map(_shape, request["cases"]):
            self._known(shape, int(request["seed"]), "plain")
            self._placed(shape)
        return {}

    # -------------------------------------------------------------------------------------------- check
    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        kernel, seed = self._kernel(request["params"]), int(request["seed"])
        chosen = {name: _shape(name) for name in request["cases"]}
        if request.get("final"):
            return self._check_all(kernel, chosen, seed)
        worst = max(self._quick(kernel, list(chosen.values()), seed), key=lambda trial: trial.badness)
        if worst.fault is not None:
            raise Wrong(f"{worst.label}, shape {worst.shape}: {worst.fault}")
        return {"max_err": worst.error.max_err if worst.error else None}

    def _check_all(self, kernel: Kernel, chosen: dict[str, Shape], seed: int) -> dict[str, Any]:
        from flashcore import check

        with ThreadPoolExecutor(1) as pool:  # compilers beside the GPU
            looked = pool.submit(self._look_at_resources, kernel.built.configuration)
            document = check.run(kernel, chosen, [seed, *(seed + n for n in range(1, check.SEEDS))])
            looked.result()
        failed = [case for case in document["cases"] if not case["passed"]]
        if failed:
            raise Wrong(f"{len(failed)} of {len(document['cases'])} cases, {failed[0]['name']}: {failed[0]['message']}")
        return {"max_err": document["summary"]["max_err"], "cases": document["summary"]["total"]}

    def _look_at_resources(self, params: Configuration) -> None:
        if self.variant.device != "cuda":
            return
        for arch in sorted({toolchain.TARGET_ARCH, toolchain.gpu_arch() or toolchain.TARGET_ARCH}):
            for k in compiled(self.variant, params, arch).document["kernels"]:
                used = ", ".join(f"{k[name]} {name}" for name in FORBIDDEN if k[name])
                if used:
                    raise Wrong(f"{k['name']} needs {used} on {k['arch']}")

    def _quick(self, kernel: Kernel, chosen: Sequence[Shape], seed: int) -> Iterator[Trial]:
        """The shapes that will be timed, then odd ones: tails of tiles, other lengths, a mask, a hot row."""
        for shape in chosen:
            yield self._judged(kernel, shape, seed, "plain")
        D = chosen[0].D
        yield self._judged(kernel, Shape(2, 3, 129, D), seed, "plain")
        yield self._judged(kernel, Shape(1, 3, 77, D, 300), seed, "bias")
        if self.variant.causal:
            yield self._judged(kernel, Shape(1, 2, 193, D), seed, "hot_row", causal=True)

    def _judged(self, kernel: Kernel, shape: Shape, seed: int, values: str, **options: Any) -> Trial:
        from flashcore import guarded

        tensors, known = self._known(shape, seed, values, **options)
        target = guarded.Guarded(shape, self.variant.device)
        return guarded.judge(kernel, values, shape, tensors, target, known=known, **options)

    def _known(self, shape: Shape, seed: int, values: str, **options: Any) -> tuple[inputs.Tensors, Expected]:
        """Inputs and what they must give. A kernel that writes into them is found out (:func:`guarded.judge`), and its
        process does not see another trial."""
        from flashcore import inputs, reference

        def draw() -> tuple[inputs.Tensors, Expected]:
            tensors = inputs.draw(shape, seed, self.variant.device, values)
            return tensors, reference.expected_of(self.variant, tensors, **options)

        return _kept(self._expected, (shape, seed, values, *options.items()), 4 * MAX_CASES, draw)

    # -------------------------------------------------------------------------------------------- time
    def _bench(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from flashcore import audit, reference, sampling

        kernel, shape = self._kernel(request["params"]), _shape(request["case"])
        repeats = max(1, int(request["repeats"]))
        kept = sampling.Reservoir(KEPT)
        source = sampling.Source(self.mode, kernel, self._placed(shape), kept)
        self._fastest[shape] = min(source.call_us, self._fastest.get(shape, source.call_us))
        source.in_step(self._fastest[shape], most=LONGER_GRAPHS)
        places = max(1, min(BENCH_PLACES, repeats // SAMPLES_PER_PLACE))
        samples: list[float] = []
        with reference.one_thread():
            for place in range(places):
                timer = source.timer(place, 0)
                timer.lead_in()
                samples += [timer.sample() for _ in range(repeats // places + (place < repeats % places))]
        audit.outputs(self.variant, kept.all())
        return {"samples": [round(sample, 4) for sample in samples]}

    def _turns(self, request: Mapping[str, Any]) -> dict[str, Any]:
        import statistics

        from flashcore import audit, sampling
        from flashcore.clocks import Clocks

        shape, turns = _shape(request["case"]), max(1, int(request["turns"]))
        kernels = [self._kernel(one["params"]) for one in request["many"]]
        sets = sampling.places(shape, self.variant.device, self.mode)
        kept = [sampling.Reservoir(KEPT) for _ in kernels]
        sources = [sampling.Source(self.mode, kernel, sets, some) for kernel, some in zip(kernels, kept)]  # noqa: B905
        fastest = min(source.call_us for source in sources)
        for source in sources:  # a call of the same kernel may take 6 us or 12, with what Python adds to it
            source.in_step(fastest)
        per: list[list[float]] = [[] for _ in kernels]
        first: list[Timer] = []
        timers: list[Timer] = []
        clocks, throttled = Clocks(), 0
        for turn in range(turns):
            order = _order(turn, len(kernels))
            if turn % TURNS_PER_PLACE == 0:
                made = {n: sources[n].timer(turn // TURNS_PER_PLACE, n) for n in order}
                timers = [made[n] for n in range(len(kernels))]
                first = first or timers
            for n in order:
                timers[n].lead_in()
                per[n].append(round(statistics.median(timers[n].sample() for _ in range(RUN)), 4))
            reading = clocks.read()
            throttled += bool(reading and reading["throttled"])
        for timer, some in zip(first, kept):  # noqa: B905 (Python 3.9)
            timer.audit()
            audit.outputs(self.variant, some.all())
        for n, kernel in enumerate(kernels):  # afterwards: it attaches other memory, which ends the timers above
            if self.variant.device == "cuda":
                sampling.refuse_impossible(kernel, shape, self.mode, statistics.median(per[n]))
        return {"per": per, "throttled": throttled, "clocks": clocks.read()}

    def _placed(self, shape: Shape) -> Sets:
        from flashcore import sampling

        def place() -> Sets:
            return sampling.places(shape, self.variant.device, self.mode, BENCH_PLACES)

        return _kept(self._sets, shape, MAX_CASES, place)

    def _kernel(self, params: Mapping[str, Any]) -> Kernel:
        chosen = self.variant.configure({str(name): int(value) for name, value in params.items()})
        key = tuple(chosen.values())
        return _kept(
            self._kernels, key, MAX_KERNELS, lambda: self._runner.result().kernel(compiled(self.variant, chosen))
        )


class Wrong(Exception):
    """The configuration does not do what it should."""


def _order(turn: int, count: int) -> list[int]:
    """A B C, C B A, B C A, A C B, ..: over turns each comes as often early as late."""
    start = turn // TURNS_PER_PLACE % count
    order = [(start + n) % count for n in range(count)]
    return order[::-1] if turn % TURNS_PER_PLACE else order


def _kept(cache: OrderedDict[Any, Any], key: Any, most: int, make: Callable[[], Any]) -> Any:
    """``cache[key]``, made if it is not there; the longest unused beyond ``most`` are forgotten."""
    if key not in cache:
        cache[key] = make()
        while len(cache) > most:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


def _shape(name: Any) -> Shape:
    (shape,) = shapes.parse(str(name)).values()
    return shape


def _flat(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:2]) or type(error).__name__
    return text if isinstance(error, FlashcoreError) else f"{type(error).__name__}: {text}"


def heard(stream: BinaryIO, meet: Callable[[], Any] | None = None) -> Iterator[bytes]:
    """The lines of ``stream``, read as soon as they come: before one that lets this process warm up, it shall ``meet``
    the GPU, even while PyTorch is still imported."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in iter(stream.readline, b""):
            if meet is not None and b'"warm"' in line:
                meet()
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    return iter(lines.get, b"")


def serve(service: Service, requests: Iterable[bytes], replies: BinaryIO) -> None:
    """Answer until ``requests`` ends."""
    for line in requests:
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        replies.write(json.dumps(service.answer(request)).encode() + b"\n")
        replies.flush()


def own_stdout() -> BinaryIO:
    """The stdout we were started with, for replies alone: what else prints, a kernel's printf too, goes to stderr."""
    sys.stdout.flush()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def run(
    variant: Variant,
    how: str,
    fixed: Mapping[str, int],
    mode: str | None,
    out: Callable[[], Any],
    requests: Iterable[bytes] = (),
) -> int:
    """``how`` is space, build or serve; ``out`` gives the folder for the build's documents."""
    if how == "space":
        print(json.dumps(space(variant, fixed)))
    elif how == "build":
        folder = out()  # refused before the compiler has worked for it
        built = compiled(variant, from_environment(variant, {**os.environ, **{k: str(v) for k, v in fixed.items()}}))
        print(built.log.read_text(encoding="utf-8"))
        print(build.save(built, folder))
    else:
        replies = own_stdout()
        serve(Service(variant, mode), requests, replies)
    return 0
