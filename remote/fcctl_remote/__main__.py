"""The host program's command line; started as ``python3 <sha256>.pyz COMMAND`` or ``fcctl-host COMMAND``.

agent                    answer the controller's calls on stdin and stdout
supervise RUN            carry out a run (window ``run`` of its tmux session)
telemetry RUN            measure beside a run (window ``gpu``)
receive WORKSPACE        unpack a tar stream from stdin into a workspace's tree
warm                     read from the disk what steps take long to load
probe [--out DIR] [--json]   report on this machine: 0 fit, 1 warnings, 2 not fit
read READER FILE         print the document a reader makes of a file
venv FOLDER              make a virtual environment that sees the packages of $FCCTL_PYTHON, torch among them
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
        mended: files of this program that were damaged, and were put right at this start.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    root = None
    if words[:1] == ["--root"] and len(words) > 1:
        root, words = os.path.abspath(words[1]), words[2:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if words else USAGE_ERROR
    program = Program(root, archive, mended)
    command = program.commands.get(words[0])
    if command is None:
        print("fcctl-host: no command %r; try --help" % words[0], file=sys.stderr)
        return USAGE_ERROR
    return command(words[1:])


class Program:
    """The commands, and how to start this program once more. Imports happen in the command that needs them."""

    def __init__(self, root: str | None, archive: str | None, mended: Sequence[str] = ()) -> None:
        from fcctl_remote.base.layout import Layout, default_root

        self.layout = Layout(root or default_root(archive))
        self.archive = archive
        self.mended = mended
        self.commands: dict[str, Callable[[list[str]], int]] = {
            "agent": self.agent,
            "supervise": self.supervise,
            "telemetry": self.telemetry,
            "receive": self.receive,
            "warm": self.warm,
            "probe": self.probe,
            "read": self.read,
            "venv": self.venv,
            "version": self.version,
        }

    def runner(self) -> list[str]:
        """argv that starts this program. Isolated: the user's PYTHONPATH and site packages are none of its business."""
        archive = self.archive or ""
        script = os.path.join(archive[: -len(".pyz")] + ".d", "__main__.py")  # starts faster than the archive
        return [sys.executable, "-I", "-S", script if os.path.isfile(script) else archive]

    def sha256(self) -> str:
        if self.archive is None:
            return ""
        stem = os.path.basename(self.archive)[: -len(".pyz")]
        if len(stem) == 64:
            return stem
        with open(self.archive, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()

    def agent(self, words: list[str]) -> int:
        if words:
            return _usage("agent takes no arguments")
        from fcctl_remote.agent.agent import serve

        return serve(self.layout, self.runner(), self.sha256(), self.mended)

    def supervise(self, words: list[str]) -> int:
        if len(words) != 1:
            return _usage("supervise RUN")
        from fcctl_remote.run.supervisor import supervise

        return supervise(self.layout, words[0], self.runner())

    def telemetry(self, words: list[str]) -> int:
        if len(words) != 1:
            return _usage("telemetry RUN")
        from fcctl_remote.run.telemetry import telemetry

        return telemetry(self.layout, words[0])

    def receive(self, words: list[str]) -> int:
        if len(words) != 1:
            return _usage("receive WORKSPACE")
        from fcctl_remote.agent import receive

        self.layout.ensure()
        return receive.main(self.layout, words[0])

    def warm(self, words: list[str]) -> int:
        if words:
            return _usage("warm takes no arguments")
        from fcctl_remote.agent.warm import warm

        return warm(self.layout)

    def probe(self, words: list[str]) -> int:
        from fcctl_remote.probe import command

        return command.main(words)

    def read(self, words: list[str]) -> int:
        if len(words) != 2:
            return _usage("read READER FILE")
        import json

        from fcctl_remote import readers

        try:
            document = readers.read(words[0], words[1], dict(os.environ))
        except readers.ReaderError as error:
            return _failed(error.message, error.hint, 69 if error.unavailable else 1)
        print(json.dumps(document, indent=1))
        return 0

    def venv(self, words: list[str]) -> int:
        if len(words) != 1:
            return _usage("venv FOLDER")
        from fcctl_remote.run import venv

        try:
            venv.make(words[0], os.environ)
        except venv.VenvError as error:
            return _failed(error.message, error.hint, 1)
        return 0

    def version(self, words: list[str]) -> int:
        if words:
            return _usage("version takes no arguments")
        from fcctl_remote.wire import WIRE_VERSION

        print("fcctl host program, wire %d, %s" % (WIRE_VERSION, self.sha256() or "from source"))
        return 0


def _failed(message: str, hint: str | None, code: int) -> int:
    print("fcctl-host: %s" % message, file=sys.stderr)
    if hint:
        print("hint: %s" % hint, file=sys.stderr)
    return code


def _usage(text: str) -> int:
    print("usage: fcctl-host %s" % text, file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
