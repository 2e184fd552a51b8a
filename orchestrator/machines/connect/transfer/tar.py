"""The source as a tar stream into the host program's ``receive``, for machines without a usable rsync."""

from __future__ import annotations

import tarfile
import threading
import time
from pathlib import Path
from typing import IO, cast

from orchestrator.base.errors import ConflictError, FcctlError, HostFault
from orchestrator.machines.connect.transfer.rsync import LOOK_S, TIMEOUT_S, FileSet, Watch
from orchestrator.machines.connect.transport import Process

CHUNK = 256 * 1024
#: How long the host may take to finish writing what it was sent, seconds.
FINISH_S = 120.0


class TarStream:
    """Writes the archive from a thread of its own, so that a link that takes nothing more is noticed beside it."""

    def __init__(self, process: Process, shipment: FileSet) -> None:
        self._process = process
        self._shipment = shipment
        self._whole = False
        self._problem: FcctlError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="tar")

    def send(self, watch: Watch) -> int | None:
        """The exit status of ``receive``: 0 if it has every file, None if there is none.

        Raises:
            LinkLost: from ``watch``.
            HostFault, ConflictError: a file here changed or cannot be read.
        """
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(LOOK_S)
            if self._thread.is_alive():
                watch(0.01)
        if self._problem:
            raise self._problem
        status = self._finish(watch)
        return 255 if status == 0 and not self._whole else status

    def close(self) -> None:
        self._process.close()  # which ends the thread, if it still writes
        if self._thread.ident is not None:
            self._thread.join(5)

    def _finish(self, watch: Watch) -> int | None:
        deadline = time.monotonic() + FINISH_S
        while time.monotonic() < deadline:
            status = self._process.wait(LOOK_S)
            if status is not None:
                return status
            watch(0.01)
        return None

    def _run(self) -> None:
        try:
            self._write_archive()
            self._whole = True
        except FcctlError as error:
            self._problem = error
        except (OSError, TimeoutError):
            pass  # the host stopped reading: its exit status, or the link's, says why
        finally:
            self._process.end_input()

    def _write_archive(self) -> None:
        # PAX would add a header per odd name; GNU's format holds any name and both ends are Python.
        with tarfile.open(
            fileobj=cast("IO[bytes]", self), mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK,
            encoding="utf-8", errors="surrogateescape",
        ) as archive:  # fmt: skip
            for path in self._shipment.paths:
                _add(archive, self._shipment.source_root, path)

    def write(self, data: bytes) -> int:
        """For tarfile, which writes the archive into this object."""
        self._process.write(data, TIMEOUT_S)
        return len(data)


def _add(archive: tarfile.TarFile, source_root: Path, path: str) -> None:
    full = source_root / path
    try:
        member = archive.gettarinfo(str(full), arcname=path)
        content = full.open("rb") if member.isreg() or member.islnk() else None
    except FileNotFoundError:
        return  # deleted since it was listed: the snapshot's check will say so
    except OSError as error:
        raise ConflictError(f"'{path}' cannot be read", cause=error.strerror, hint=f"ls -l {path}") from None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if content is None:
        archive.addfile(member)
        return
    with content:
        if member.islnk():  # tarfile's hard link to an earlier member: the host wants each file whole
            member.type, member.linkname, member.size = tarfile.REGTYPE, "", full.stat().st_size
        try:
            archive.addfile(member, content)
        except OSError as error:
            if "unexpected end of data" in str(error):
                raise HostFault(
                    f"'{path}' changed while it was sent", fault="tree_mismatch", hint="run it again"
                ) from None
            raise
