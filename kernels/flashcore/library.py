"""A built library in this process: the C struct of a call, and loading. Nothing here needs torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from flashcore.apart import Code
from flashcore.build import Built
from flashcore.errors import Unavailable


class Strides(ctypes.Structure):
    _fields_ = (("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64))


class Args(ctypes.Structure):
    """``flashcore_args`` of csrc/flashcore.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o")),
        *((name + "_stride", Strides) for name in ("q", "k", "v", "o")),
        *((name, ctypes.c_int32) for name in ("B", "H", "S_q", "S_kv", "D")),
        ("scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("H_kv", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("tiling", ctypes.c_int32),
        ("mask", ctypes.c_void_p),
        ("mask_stride", Strides),
        ("window_left", ctypes.c_int32),
        ("window_right", ctypes.c_int32),
        ("softcap", ctypes.c_float),
        ("slopes", ctypes.c_void_p),
        ("slope_batch", ctypes.c_int64),
        ("starts_q", ctypes.c_void_p),
        ("starts_k", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("page_keys", ctypes.c_int32),
    )


def load(built: Built, loader: Callable[[str], Any]) -> Any:
    """Raises Unavailable: it does not load, or was built for another version of the struct."""
    try:
        library = loader(str(built.library))
        library.flashcore_args_bytes.restype = ctypes.c_size_t
    except (OSError, AttributeError) as e:
        raise Unavailable(
            f"could not load {built.library}",
            cause=str(e),
            hint=f"delete it, so that it is built again: rm -r {built.library.parent}",
        ) from e
    if library.flashcore_args_bytes() != ctypes.sizeof(Args):
        raise Unavailable(
            f"{built.library} was built for another version of flashcore_args",
            hint="library.Args and csrc/flashcore.h must list the same fields",
        )
    library.flashcore_error.restype = ctypes.c_char_p
    if hasattr(library, "flashcore_folder"):
        library.flashcore_folder(os.fsencode(built.library.parent))
    if built.code is not None:
        _open(built, built.code, library)
    return library


def _open(built: Built, code: Code, library: Any) -> None:
    """Have ``library`` take its kernel from the file of device code beside it."""
    values = [built.configuration[name] for name in built.variant.told]
    settings = (ctypes.c_int32 * len(values))(*values)
    error = library.flashcore_open(os.fsencode(code.file), code.kernel.encode(), settings)
    if error:
        cause = library.flashcore_error(error).decode()
        raise Unavailable(
            f"cannot load {code.file}",
            cause=cause,
            hint=f"delete it, so that it is built again: rm -r {code.file.parent}",
        )
