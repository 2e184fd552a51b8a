"""The host program's command line; started as ``python3 <sha256>.pyz COMMAND`` or ``fcctl-host COMMAND``.

agent                    answer the controller's calls on stdin and stdout
supervise RUN            carry out a run (window ``run`` of its tmux session)
telemetry RUN            measure beside a run (window ``gpu``)
probe [--out DIR] [--json]   report on this machine: 0 fit, 1 warnings, 2 not fit
read READER FILE         print the document a reader makes of a file
container-nvcc PROGRAM IMAGE ...   nvcc in a container
venv FOLDER              make a virtual environment that sees the packages of $FCCTL_PYTHON, torch among them
shell [..]               become a login shell with what a run's steps have
gpu-log                  print and log one line a second on the GPU
version                  print the wire's version and this program's sha256
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence

USAGE_ERROR = 2


def main(argv: list[str] | None = None, archive: str | None = None, mended: Sequence[str] = ()) -> int:
    """Run one command; returns the exit code.

    Args:
        archive: the .pyz this code came in.
        mended: damaged files of this program that this start has repaired.
    """
    from fcctl_remote.base.layout import default_root

    words = list(sys.argv[1:] if argv is None else argv)
    root = None
    if words[:1] == ["--root"] and len(words) > 1:
        root, words = os.path.abspath(words[1]), words[2:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if words else USAGE_ERROR
    name, *rest = words
    takes, command = COMMANDS.get(name, ("", None))
    if command is None:
        print("fcctl-host: unknown command %r; see: fcctl-host --help" % name, file=sys.stderr)
        return USAGE_ERROR
    if takes != "..." and len(rest) != len(takes.split()):
        print("usage: fcctl-host %s %s" % (name, takes or "takes no arguments"), file=sys.stderr)
        return USAGE_ERROR
    return command(Program(root or default_root(archive), archive, mended), *rest)


class Program:
    """Where this program's folder is, and how to start it once more."""

    def __init__(self, root: str, archive: str | None, mended: Sequence[str]) -> None:
        from fcctl_remote.base.layout import Layout

        self.layout = Layout(root)
        self.archive = archive
        self.mended = mended

    def runner(self) -> list[str]:
        """argv that starts this program. Isolated: the user's PYTHONPATH and site packages are none of its business."""
        archive = self.archive or ""
        script = os.path.join(archive[: -len(".pyz")] + ".d", "__main__.py")  # starts faster than the archive
        program = script if os.path.isfile(script) else archive
        return [sys.executable, "-I", "-S", program, "--root", self.layout.root]

    def sha256(self) -> str:
        if self.archive is None:
            return ""
        stem = os.path.basename(self.archive)[: -len(".pyz")]
        if len(stem) == 64:
            return stem
        with open(self.archive, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()


# Imports happen in the command that needs them.
def _agent(program: Program) -> int:
    from fcctl_remote.agent.agent import serve

    return serve(program.layout, program.runner(), program.sha256(), program.mended)


def _supervise(program: Program, run_id: str) -> int:
    from fcctl_remote.run.supervisor import supervise

    return supervise(program.layout, run_id, program.runner())


def _telemetry(program: Program, run_id: str) -> int:
    from fcctl_remote.run.telemetry import telemetry

    return telemetry(program.layout, run_id)


def _probe(program: Program, *words: str) -> int:
    from fcctl_remote.probe import document

    return document.main(list(words), program.layout.root)


def _read(_program: Program, reader: str, file: str) -> int:
    import json

    from fcctl_remote import readers

    try:
        document = readers.read(reader, file, dict(os.environ))
    except readers.ReaderError as error:
        return _failed(error.message, error.hint, 69 if error.unavailable else 1)
    print(json.dumps(document, indent=1))
    return 0


def _venv(_program: Program, folder: str) -> int:
    from fcctl_remote.run.environment import make_venv
    from fcctl_remote.wire import Refusal

    try:
        make_venv(folder, os.environ)
    except Refusal as refusal:
        return _failed(refusal.error.message, refusal.error.hint, 1)
    return 0


def _container_nvcc(_program: Program, *words: str) -> int:
    from fcctl_remote.probe import docker

    argv = docker.nvcc_command(words[0], words[1], words[2:], os.environ, os.getcwd())
    os.execv(argv[0], argv)  # noqa: S606


def _torch_build(_program: Program) -> int:
    from fcctl_remote.base import torch_builds

    torch_builds.prepare(os.getcwd(), os.path.realpath(os.path.join(os.environ["FCCTL_RUN_DIR"], "src")))
    return 0


def _shell(program: Program, *words: str) -> int:
    from fcctl_remote.agent.shell import shell

    return shell(program.layout, program.runner(), list(words))


def _gpu_log(program: Program) -> int:
    from fcctl_remote.agent.shell import gpu_log

    return gpu_log(program.layout)


def _version(program: Program) -> int:
    from fcctl_remote.wire import WIRE_VERSION

    print("fcctl host program, wire %d, %s" % (WIRE_VERSION, program.sha256() or "from source"))
    return 0


#: Name -> its arguments, and what it does.
COMMANDS: dict[str, tuple[str, Callable[..., int]]] = {
    "agent": ("", _agent),
    "supervise": ("RUN", _supervise),
    "telemetry": ("RUN", _telemetry),
    "probe": ("...", _probe),
    "read": ("READER FILE", _read),
    "venv": ("FOLDER", _venv),
    "container-nvcc": ("...", _container_nvcc),
    "torch-build": ("", _torch_build),
    "shell": ("...", _shell),
    "gpu-log": ("", _gpu_log),
    "version": ("", _version),
}


def _failed(message: str, hint: str | None, code: int) -> int:
    print("fcctl-host: %s" % message, file=sys.stderr)
    if hint:
        print("hint: %s" % hint, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
