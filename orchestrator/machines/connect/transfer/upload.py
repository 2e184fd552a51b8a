"""Bringing changed files into the tree on the host: rsync where both ends have it, else a tar stream."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from fcctl_remote import wire
from orchestrator.base.errors import HostUnusable, LinkLost
from orchestrator.machines.connect.host_command import HostProgram
from orchestrator.machines.connect.transfer import rsync
from orchestrator.machines.connect.transfer.tar import TarStream
from orchestrator.machines.connect.transport import Transport
from orchestrator.machines.host_api import Transfer


class Uploader:
    """Sends files; once rsync has failed on a machine, tar is used there for the rest of the session."""

    def __init__(self, transport: Transport, program: HostProgram) -> None:
        self._transport = transport
        self._program = program
        self._rsync_works = True

    def send(self, hello: wire.Hello, shipment: rsync.FileSet, watch: rsync.Watch) -> Transfer:
        """See ``send``. ``watch`` raises LinkLost if the host falls silent."""
        began = time.monotonic()
        size = sum(_size(shipment.source_root / path) for path in shipment.paths)
        how = "none"
        if shipment.paths:
            how = self._rsync(hello, shipment, watch) or self._tar(hello, shipment, watch)
        return Transfer(files=len(shipment.paths), bytes=size, seconds=time.monotonic() - began, how=how)

    def _rsync(self, hello: wire.Hello, shipment: rsync.FileSet, watch: rsync.Watch) -> str | None:
        program = hello.tools.get("rsync")
        if not (self._rsync_works and program and rsync.local_program()):
            return None
        try:
            rsync.send(self._transport, program, shipment, watch)
        except rsync.RsyncFailed:
            if not self._transport.alive():
                raise LinkLost("the connection broke during the upload", hint="try again") from None
            self._rsync_works = False  # an rsync that does not understand ours; tar does not care
            return None
        return "rsync"

    def _tar(self, hello: wire.Hello, shipment: rsync.FileSet, watch: rsync.Watch) -> str:
        process = self._transport.run(self._program.script("receive", shipment.workspace))
        stream = TarStream(process, shipment)
        try:
            status = stream.send(watch)
            if status == 0:
                return "tar"
            if status is None or not self._transport.alive():
                raise LinkLost("the connection broke during the upload", hint="try again")
            raise HostUnusable(
                "the host could not store the source", cause=process.stderr() or f"it ended with {status}",
                hint=f"free some space there: df -h {hello.root}",
            )  # fmt: skip
        finally:
            stream.close()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_size
    return 0
