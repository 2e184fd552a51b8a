"""A GPU machine as a cloud delivers it, behind a real sshd on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import stock_image
from tests.support.sshd import LoopbackSshd
from tests.support.stock_image import FirstBoot


class StockMachine:
    def __init__(self, folder: Path, server: LoopbackSshd, first_boot: FirstBoot) -> None:
        self.server = server
        self.root, self.programs = stock_image.make(folder, first_boot)
        self.state = folder / "state"
        server.environment |= {"FCCTL_SYSTEM_ROOT": str(self.root), "PATH": str(self.programs)}

    def text(self, path: str) -> str:
        """What a file of the system holds."""
        return (self.root / path).read_text()

    def files(self) -> dict[str, str]:
        """The system's files below ``etc`` and ``usr``."""
        paths = (path for top in ("etc", "usr") for path in (self.root / top).rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_text() for path in paths}

    def program(self, name: str, text: str) -> None:
        """One more stand-in."""
        (self.programs / name).unlink(missing_ok=True)
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)


@contextmanager
def stock_machine(folder: Path, **first_boot: int) -> Iterator[StockMachine]:
    server = LoopbackSshd()
    machine = StockMachine(folder, server, FirstBoot(**first_boot))
    try:
        server.start()
        yield machine
    finally:
        server.close()
