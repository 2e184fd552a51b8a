"""Makes every Python of ``python -m tests.mac_like`` say that it is macOS, without what macOS lacks.

It cannot give what only macOS has: kqueue, launchd, Apple's linker. What this proves is in docs/macos.md.
"""

from __future__ import annotations

import builtins
import io
import os
import select
import sys
import time
import types

#: The product's own packages do not find /proc. Tests do: they look at what processes there are.
PRODUCT = ("orchestrator", "fcctl_remote", "fcctl_tune", "flashcore")
MISSING = {
    os: ("copy_file_range", "memfd_create", "pidfd_open", "posix_fadvise", "posix_fallocate", "sched_getaffinity"),
    select: ("epoll",),
    time: ("CLOCK_BOOTTIME",),
}


def pretend() -> None:
    # Libraries that choose their implementation by the platform do so for the one there is.
    import ctypes
    import multiprocessing  # noqa: F401
    import platform  # noqa: F401
    import subprocess  # noqa: F401
    import sysconfig
    import uuid  # noqa: F401

    sysconfig.get_config_vars()
    sys.platform = "darwin"
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    uname = os.uname_result(("Darwin", os.uname().nodename, "24.6.0", "Darwin Kernel Version 24.6.0", "arm64"))
    os.uname = lambda: uname
    sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)

    class Library(ctypes.CDLL):
        def __getattr__(self, name):
            if name == "prctl":
                raise AttributeError(name)
            return super().__getattr__(name)

    ctypes.CDLL = Library
    builtins.open = io.open = without_proc(builtins.open)
    for name in ("open", "listdir", "scandir", "stat", "lstat", "readlink"):
        setattr(os, name, without_proc(getattr(os, name)))


def without_proc(function):
    def guarded(*args, **kwargs):
        path = args[0] if args else kwargs.get("path", kwargs.get("file", ""))
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.fsdecode(path)
            if (name == "/proc" or name.startswith("/proc/")) and of_the_product(sys._getframe(1)):
                raise FileNotFoundError(2, "No such file or directory", name)
        return function(*args, **kwargs)

    return guarded


def of_the_product(frame):
    """Whether the nearest caller outside the standard library is the product's."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in PRODUCT or name == "tests":
            return name != "tests"
        frame = frame.f_back
    return False


if os.environ.get("MAC_LIKE"):
    pretend()
