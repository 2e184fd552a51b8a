"""The short way from a Python call to a kernel: a small C extension (csrc/dispatch.c), compiled once per Python.

Where it cannot be had (no C compiler, no Python headers, a PyTorch without DLPack's table of C functions, a Python
without the GIL) calls go the long way through :mod:`ctypes`; :func:`load` says why.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode

from flashcore import build, toolchain
from flashcore.errors import FlashcoreError
from flashcore.registry import CSRC

NAME = "flashcore_dispatch"
SOURCE, HEADER = CSRC / "dispatch.c", CSRC / "flashcore.h"
FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")
#: DLPack's numbers of device types, by torch's names.
DEVICE_TYPES = {"cpu": 1, "cuda": 2}


@functools.cache
def load() -> tuple[Any, str]:
    """The extension and ``""``; or None, and the reason why calls must go through ctypes."""
    if os.environ.get("FLASHCORE_DISPATCH") == "0":
        return None, "FLASHCORE_DISPATCH=0"
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return None, f"torch {torch.__version__} has no __dlpack_c_exchange_api__"
    try:
        path = _compiled()
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
        spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
        assert spec is not None  # noqa: S101 (a loader was given)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (FlashcoreError, OSError, ImportError, subprocess.SubprocessError) as e:
        return None, (str(e).splitlines() or [type(e).__name__])[0]
    return module, ""


def sees_modes(extension: Any) -> bool:
    """Whether a Launcher tells calls under a mode, transform, trace or autocast of PyTorch from other calls."""
    plain = extension.state()
    if plain is None:
        return False
    key = torch._C.DispatchKey.Functionalize  # noqa: SLF001
    guards = (
        torch._C._IncludeDispatchKeyGuard(key),  # noqa: SLF001
        torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)),  # noqa: SLF001
        BaseTorchFunctionMode(),
    )
    states = []
    for guard in guards:
        with guard:
            states.append(extension.state())
    changed = [tuple(a != b for a, b in zip(state, plain)) for state in states]  # noqa: B905 (Python 3.9)
    return changed == [(True, False, False), (False, True, False), (False, False, True)]


def _compiled() -> Path:
    """The extension's file, from the cache or compiled now, which takes less than a second.

    Raises:
        Unavailable: no compiler.
        OSError: no Python headers, or the compiler refused.
    """
    compiler, include = toolchain.cxx(), sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        raise OSError(f"{include} has no Python.h; install python3-dev")
    command = [compiler, *FLAGS, f"-I{include}", f"-I{CSRC}"]
    parts = [SOURCE.read_text(), HEADER.read_text(), *command, toolchain.version(compiler), sys.version]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    home = build.cache_folder() / f"dispatch-{key}"
    library = home / f"{NAME}.so"
    if library.exists():
        return library
    home.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=home.parent, prefix=".building-"))
    try:
        argv = [*command, str(SOURCE), "-o", str(work / library.name)]
        if sys.platform == "darwin":
            argv += ["-undefined", "dynamic_lookup"]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise OSError(f"{SOURCE.name} did not compile: {done.stderr.strip()[:300]}")
        try:
            work.rename(home)
        except OSError:  # another process was first
            if not library.exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return library


def allocator(device: str) -> tuple[Any, bool]:
    """A function that makes outputs, and whether it takes (size, stride, dtype) instead of a tensor to imitate.

    PyTorch's compiler calls the first kind for its own buffers: it does not go through the dispatcher.
    """
    guards = getattr(torch._C, "_dynamo", None)  # noqa: SLF001
    by_layout = getattr(getattr(guards, "guards", None), f"_empty_strided_{device}", None)
    return (by_layout, True) if by_layout is not None else (torch.empty_like, False)
