"""``shell`` and ``gpu-log``: what a person who logs in has, as a run's steps have it."""

from __future__ import annotations

import os
import shlex
import signal

from fcctl_remote.base import files
from fcctl_remote.base.hostfacts import which
from fcctl_remote.base.layout import Layout

SESSION = "gpu"
TMUX_TIMEOUT_S = 20.0
MOST_BYTES = 64 * 1024
#: The log begins anew beyond this size, bytes; a day of one GPU has some 10 MB.
LOG_BYTES = 64 * 1024 * 1024


def install(layout: Layout, runner: list[str]) -> None:
    """``<root>/bin/fcctl-host``: this host program for people, of the last connection. A full disk has none."""
    text = ('#!/bin/sh\nexec %s "$@"\n' % shlex.join(runner)).encode()
    path = os.path.join(layout.bin, "fcctl-host")
    try:
        if files.is_plain(path) and files.read_plain(path, MOST_BYTES) == text:
            return
        files.make_folders(layout.bin)
        files.write_atomic(path, text, durable=False, mode=0o755)
    except (OSError, files.DiskFull):
        pass


def shell(layout: Layout, runner: list[str], words: list[str]) -> int:
    """Becomes the user's shell with CUDA, the Python of the steps and ``fcctl-host``; called by a login shell. With
    ``--gpu-log``, starts the tmux session ``gpu`` first, if there is none. ``--python``, the last word but one, is as
    ``python`` of a run's plan."""
    from fcctl_remote.probe.environment import activated, resolve_environment

    env = {**os.environ, **(activated(words[-1], os.environ) if "--python" in words[-2:] else {})}
    env.update(resolve_environment(env, layout.root))
    python = os.path.dirname(env.get("FCCTL_PYTHON", ""))
    env["PATH"] = os.pathsep.join(part for part in (layout.bin, env.get("PATH", os.defpath), python) if part)
    if "--gpu-log" in words:
        _start_log(runner)
    program = env.get("SHELL") or "/bin/sh"
    os.execve(program, [program], env)  # noqa: S606 - the user's own shell
    return 1


def _start_log(runner: list[str]) -> None:
    from fcctl_remote.base.programs import run

    tmux = which("tmux")
    if tmux is None:
        return
    command = "exec " + shlex.join([*runner, "gpu-log"])
    run([tmux, "-u", "new-session", "-d", "-s", SESSION, "-n", "log", command], TMUX_TIMEOUT_S)  # one may be there


def gpu_log(layout: Layout) -> int:
    """One line a second on the GPU, or on the processor where there is none, here and in ``gpu.log``; until it ends."""
    from fcctl_remote.run import telemetry

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    path = os.path.join(layout.root, "gpu.log")
    source = telemetry.new_source()
    try:
        while True:
            sample = source.next(1.0)
            if sample is None:
                continue
            line = telemetry.describe(sample)
            print(line, flush=True)
            if os.path.exists(path) and os.path.getsize(path) > LOG_BYTES:
                os.replace(path, path + ".1")
            files.append_line(path, line.encode())
    finally:
        source.close()
