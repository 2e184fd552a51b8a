"""nvcc in a container, for steps on a computer that has none: a program ``nvcc`` on their PATH starts it, with the
folders that its command line names at the same paths, and without a network."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from fcctl_remote.base import files, programs

#: The image's name, in the environment of steps that may use it.
IMAGE = "FCCTL_CUDA_IMAGE"
RUNTIMES = ("docker", "podman")
INSPECT_TIMEOUT_S = 20.0
#: What is below these is the image's own.
_SYSTEM = ("/bin", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
#: After these a path is written to.
_OUTPUTS = ("-o", "--output-file", "-odir", "--output-directory", "--keep-dir", "-MF", "--dependency-output")
_PASSED = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")


def runtime(image: str, env: Mapping[str, str]) -> str | None:
    """The first container program on PATH that works and has ``image``. Nothing is downloaded."""
    for name in RUNTIMES:
        program = programs.which(name, env)
        if program and programs.run([program, "image", "inspect", image], INSPECT_TIMEOUT_S, env).ok:
            return program
    return None


def hint(image: str, env: Mapping[str, str]) -> str:
    """How a computer gets an nvcc, or a container with one."""
    name = next((name for name in RUNTIMES if programs.which(name, env)), None)
    if name is None:
        return (
            "install the CUDA toolkit, or Docker or Podman, then: docker pull %s; or give the target a `builder`"
            % image
        )
    return "start %s if it is not running, then: %s pull %s" % (name, name, image)


def write_nvcc(folder: str, host_program: str, program: str, image: str) -> None:
    """``nvcc`` in ``folder``, which runs it in a container."""
    text = '#!/bin/sh\nexec %s "$@"\n' % shlex.join([host_program, "container-nvcc", program, image])
    files.write_atomic(os.path.join(folder, "nvcc"), text.encode(), durable=False, mode=0o755)


def command(program: str, image: str, arguments: Sequence[str], env: Mapping[str, str], folder: str) -> list[str]:
    """argv of ``nvcc ARGUMENTS`` in a container of ``image``; ``folder`` is the working directory."""
    user = "%d:%d" % (os.getuid(), os.getgid())
    whose = ["--userns=keep-id"] if os.path.basename(program) == "podman" else ["--user", user]
    passed = [word for name in _PASSED if name in env for word in ("--env", name)]
    mounts = [word for mount in _mounts(arguments, env, folder) for word in ("--volume", mount)]
    options = ["--rm", "--init", "--network", "none", "--pull", "never", *whose, *passed, *mounts]
    return [program, "run", *options, "--workdir", folder, "--entrypoint", "nvcc", image, *arguments]


def _mounts(arguments: Sequence[str], env: Mapping[str, str], folder: str) -> list[str]:
    """``FOLDER:FOLDER``, with ``:ro`` where nvcc only reads."""
    written = {folder, env.get("FCCTL_RUN_DIR") or folder}
    read: set[str] = set()
    for before, word in zip(["", *arguments], arguments):  # noqa: B905 (Python 3.8)
        path = _folder_of(word)
        output = before in _OUTPUTS or word.startswith(("-o/", *(option + "=" for option in _OUTPUTS)))
        if path is not None:
            (written if output else read).add(path)
    read = {path for path in read if not any(_within(path, above) for above in written)}
    return ["%s:%s" % (path, path) for path in sorted(written)] + ["%s:%s:ro" % (path, path) for path in sorted(read)]


def _folder_of(word: str) -> str | None:
    """The folder of the absolute path in ``word``, which may follow an option (``-I/x``, ``--output-file=/x/y``)."""
    start = word.find("/")
    if start < 0 or (start > 0 and not word.startswith("-")):
        return None
    path = os.path.normpath(word[start:])
    path = path if os.path.isdir(path) else os.path.dirname(path)
    shared = path.count("/") >= 2 and not any(_within(path, system) for system in _SYSTEM)
    return path if shared and os.path.isdir(path) else None


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
