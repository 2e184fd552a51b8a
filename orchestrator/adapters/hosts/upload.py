"""Bringing changed files into the tree on the host: rsync where both ends have it, else a tar stream."""

from __future__ import annotations

import contextlib
import os
import tarfile
import time
from pathlib import Path
from typing import IO, cast

from fcctl_remote import wire
from orchestrator.adapters.hosts import rsync
from orchestrator.adapters.hosts.program import HostProgram
from orchestrator.adapters.hosts.transport import Process, Transport
from orchestrator.errors import HostFault, HostUnusable, LinkLost
from orchestrator.ports import Transfer

TAR_CHUNK = 256 * 1024
#: How long the host may take to finish writing what it was sent, seconds.
TAR_FINISH_S = 120.0


class Uploader:
    """Sends files; once rsync has failed on a machine, tar is used there for the rest of the session."""

    def __init__(self, transport: Transport, program: HostProgram) -> None:
        self._transport = transport
        self._program = program
        self._rsync_works = True

    def send(self, hello: wire.Hello, shipment: rsync.Shipment, watch: rsync.Watch) -> Transfer:
        """See :meth:`orchestrator.ports.HostSession.send`. ``watch`` raises LinkLost if the host falls silent."""
        began = time.monotonic()
        size = sum(_size(shipment.source_root / path) for path in shipment.paths)
        how = "none"
        if shipment.paths:
            how = self._rsync(hello, shipment, watch) or self._tar(hello, shipment, watch)
        return Transfer(files=len(shipment.paths), bytes=size, seconds=time.monotonic() - began, how=how)

    def _rsync(self, hello: wire.Hello, shipment: rsync.Shipment, watch: rsync.Watch) -> str | None:
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

    def _tar(self, hello: wire.Hello, shipment: rsync.Shipment, watch: rsync.Watch) -> str:
        process = self._transport.run(self._program.script("receive", shipment.workspace))
        try:
            whole = _stream(process, shipment)
            status = _finish(process, watch)
            if status == 0 and whole:
                return "tar"
            if status is None or not self._transport.alive():
                raise LinkLost("the connection broke during the upload", hint="try again")
            raise HostUnusable(
                "the host could not store the source", cause=process.stderr() or f"it ended with {status}",
                hint=f"free some space there: df -h {hello.root}",
            )  # fmt: skip
        finally:
            process.close()


def _stream(process: Process, shipment: rsync.Shipment) -> bool:
    """Write the archive; False if the host stopped reading, which its exit status explains."""
    writer = _Writer(process)
    try:
        # PAX would add a header per odd name; GNU's format holds any name and both ends are Python.
        with tarfile.open(
            fileobj=cast("IO[bytes]", writer), mode="w|", format=tarfile.GNU_FORMAT, bufsize=TAR_CHUNK,
            encoding="utf-8", errors="surrogateescape",
        ) as archive:  # fmt: skip
            for path in shipment.paths:
                _add(archive, shipment.source_root, path)
    except OSError:
        return False
    finally:
        process.end_input()
    return True


def _add(archive: tarfile.TarFile, source_root: Path, path: str) -> None:
    try:
        member = archive.gettarinfo(str(source_root / path), arcname=path)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if member.islnk():  # tarfile's hard links between members: the host wants each file whole
            member.type, member.linkname = tarfile.REGTYPE, ""
            member.size = (source_root / path).stat().st_size
        if not member.isreg():
            archive.addfile(member)
            return
        with (source_root / path).open("rb") as content:
            archive.addfile(member, content)
    except FileNotFoundError:
        return  # deleted since it was listed: the snapshot's check will say so
    except OSError as error:
        if "unexpected end of data" in str(error):
            raise HostFault(f"'{path}' changed while it was sent", fault="tree_mismatch", hint="run it again") from None
        raise


def _finish(process: Process, watch: rsync.Watch) -> int | None:
    deadline = time.monotonic() + TAR_FINISH_S
    while time.monotonic() < deadline:
        status = process.wait(rsync.LOOK_S)
        if status is not None:
            return status
        watch(0.01)
    return None


class _Writer:
    """tarfile's stream, into a process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def write(self, data: bytes) -> int:
        try:
            self._process.write(data, rsync.TIMEOUT_S)
        except TimeoutError:
            raise LinkLost("the connection fell silent", cause="nothing moved during the upload") from None
        return len(data)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_size
    return 0
