"""What the options of the command line mean: a variant and its settings, built, ready to run."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flashcore import build, registry, shapes, toolchain
from flashcore.errors import Unavailable, UsageError
from flashcore.tuned import Tuned
from flashcore.variant import Variant

if TYPE_CHECKING:
    from flashcore import plain


#: What limits the threads of NumPy's products, of whichever library it was built with.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def need_torch() -> Any:
    """torch, or the fix.

    Raises:
        Unavailable: this Python has no torch or no numpy.
    """
    try:
        import numpy as np  # noqa: F401
        import torch
    except ImportError as e:
        raise Unavailable(
            f"this Python has no module {e.name}",
            cause=f"{sys.executable} needs it to run a kernel",
            hint=f"{sys.executable} -m pip install torch numpy   (or use a Python that has them; in steps: "
            f"$FCCTL_PYTHON)",
        ) from e
    return torch


def plain_kernel(options: argparse.Namespace, chosen: Iterable[shapes.Shape] | None = None) -> plain.Kernel | None:
    """The CPU kernel of the command line for :mod:`flashcore.plain`, built, where this Python has NumPy and no torch;
    else None."""
    has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "numpy")}
    if has["torch"] or not has["numpy"] or variant_of(options, options.variant)[0].device != "cpu":
        return None
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # before NumPy is imported
    from flashcore import plain

    built = build_all(options, tuned_of(options), chosen)[0]
    print(
        "this Python has no torch: the comparison is with NumPy instead of PyTorch; for PyTorch: "
        f"{sys.executable} -m pip install torch, or make setup", flush=True,
    )  # fmt: skip
    return plain.Kernel(built)


def device_here() -> str:
    """cuda where there is a GPU, else cpu."""
    return "cpu" if toolchain.gpu_arch() is None else "cuda"


def settings_of(pairs: Sequence[str]) -> dict[str, int]:
    """``NAME=NUMBER`` words by name.

    Raises:
        UsageError: one is not that.
    """
    chosen = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not value.lstrip("-").isdigit():
            raise UsageError(f"--set {pair} is not NAME=NUMBER", hint="for example --set KEYS=64")
        chosen[name.strip()] = int(value)
    return chosen


def variant_of(options: argparse.Namespace, label: str) -> tuple[Variant, dict[str, int]]:
    """The variant called ``label``, and the settings that the label names.

    Raises:
        UsageError: there is none.
        Unavailable: it is not for the device that was asked for.
    """
    asked = getattr(options, "device", None)
    name, settings = registry.split(label)
    variant = registry.find(name, lambda: asked or device_here())
    if asked and variant.device != asked:
        raise Unavailable(f"{variant.name} is a {variant.device} kernel: it has no {asked} code to compile")
    return variant, settings_of(settings)


def tuned_of(options: argparse.Namespace, label: str | None = None, load: Any = None) -> Tuned:
    """The variant of the command line, with its ``--set``; or the one called ``label``, without."""
    variant, overrides = variant_of(options, label or options.variant)
    if label is None:
        overrides.update(settings_of(options.set))
    return Tuned(variant, overrides, debug=options.debug, archs=getattr(options, "arch", None), load=load)


def build_all(options: argparse.Namespace, tuned: Tuned, chosen: Iterable[shapes.Shape] | None) -> list[build.Built]:
    """Build what ``chosen`` need (None: all that this machine can come to), and say so."""
    libraries = tuned.prepare(chosen)
    for built in libraries:
        how = "cached" if built.cached else f"built in {built.document['duration_s']:.1f} s"
        print(f"{built.label}: {how}, {built.library}")
        if options.verbose:
            print(built.document["command"], built.log.read_text(encoding="utf-8"), sep="\n")
    return libraries


def kernel_of(
    options: argparse.Namespace,
    label: str | None = None,
    chosen: Iterable[shapes.Shape] | None = None,
    *,
    judged: bool = False,
) -> Tuned:
    """The kernel that the options name, built for the ``chosen`` shapes (None: all shapes). ``judged``: it is loaded
    in a separate process, since it is not trusted."""
    variant, _ = variant_of(options, label or options.variant)
    need_torch()
    if variant.device == "cuda" and not need_torch().cuda.is_available():
        raise Unavailable(
            f"{variant.name} needs a GPU, and torch finds none",
            hint="run it on a GPU machine: fcctl run test --on HOST; or only build it here: python -m flashcore build",
        )
    if not judged:
        tuned = tuned_of(options, label)
        build_all(options, tuned, chosen)
        return tuned
    from flashcore import separate

    separate.protect()
    tuned = tuned_of(options, label, separate.Runner(variant.device).kernel)
    build_all(options, tuned, chosen)
    return tuned
