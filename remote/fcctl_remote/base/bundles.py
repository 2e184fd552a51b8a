"""Libraries that steps run on, as zip files by content, each unpacked once.

``<sha256>.zip`` appears when it is complete and has that hash. It is unpacked beside itself; each use compares the
files with the hashes in the archive, and unpacks a damaged or incomplete folder again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import zipfile
from collections.abc import Iterator

from fcctl_remote import wire
from fcctl_remote.base import files, tree
from fcctl_remote.base.layout import Layout
from fcctl_remote.record import Any
from fcctl_remote.wire import Refusal

#: Names every other file of the archive with its sha256, and what the libraries need: ``python``, ``modules``.
CONTENTS = "fcctl-bundle.json"
MAX_BYTES = 256 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Bundles:
    """The bundles below one root folder."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.bundles
        self._lock = os.path.join(layout.locks, "bundles.lock")

    def here(self, sha256: str) -> bool:
        return os.path.isfile(self._archive(sha256))

    def take(self, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        """Append ``data`` at ``offset`` to the bundle; with the last piece the hash is checked.

        A piece that does not begin where the last one ended changes nothing; the answer says where to continue. Raises
        Refusal: ``bundle_mismatch``, if all of it is here and is not what was announced: it is thrown away; OSError: no
        room."""
        archive, partial = self._archive(sha256), self._archive(sha256) + ".partial"
        files.make_folders(self._folder)
        with files.locked(self._lock):
            if os.path.isfile(archive):
                return wire.BundleState(True, size)
            received = files.size_of(partial)
            if data and offset == received and received + len(data) <= min(size, MAX_BYTES):
                received += _append(partial, data)
            if not 0 < size <= received:
                return wire.BundleState(False, received)
            if _hash(partial) != sha256:
                os.unlink(partial)
                raise Refusal(
                    "bundle_mismatch", "the libraries were damaged during the transfer", "run the command again"
                )
            os.rename(partial, archive)
            files.sync_folder(self._folder)
        return wire.BundleState(True, size)

    @contextlib.contextmanager
    def in_use(self, sha256: str) -> Iterator[str]:
        """The folder with the unpacked libraries, complete and unaltered; nobody removes it meanwhile. Raises Refusal:
        ``not_found``, if the bundle is not here; ``bad_request``, if it cannot be unpacked; OSError: no room to unpack
        it."""
        archive = self._archive(sha256)
        folder = archive[: -len(".zip")] + ".d"
        files.make_folders(self._folder)
        fd = files.open_own(archive + ".lock", os.O_RDWR, 0o600)
        try:
            with files.locked(self._lock):
                if not os.path.isfile(archive):
                    raise Refusal(
                        "not_found", "the machine does not have the libraries of this step", "start the job again"
                    )
                fcntl.flock(fd, fcntl.LOCK_SH)
                os.utime(archive)
                if not _intact(folder):
                    _unpack(archive, folder)
            yield folder
        finally:
            os.close(fd)

    def _archive(self, sha256: str) -> str:
        """Raises: Refusal: bad_request."""
        if not _SHA256.fullmatch(sha256):
            raise Refusal("bad_request", "%r is not a sha256" % sha256[:80])
        return os.path.join(self._folder, sha256 + ".zip")


def contents(folder: str) -> dict[str, Any]:
    """What an unpacked bundle says of itself."""
    return files.read_object(os.path.join(folder, CONTENTS)) or {}


def _append(path: str, data: bytes) -> int:
    with files.closing(files.open_own(path, os.O_WRONLY | os.O_APPEND, 0o600)) as fd:
        files.write_all(fd, data)
        files.flush(fd)
    return len(data)


def _hash(path: str) -> str:
    """Raises: OSError: also of a file that is larger than a bundle may be."""
    if files.size_of(path) > MAX_BYTES:
        raise OSError(errno.EFBIG, "larger than a bundle may be", path)
    return tree.hash_file(path)


def _intact(folder: str) -> bool:
    """Whether every file of the bundle lies in ``folder`` as it was. More may lie there: what Python compiled."""
    listed = contents(folder).get("files")
    if not isinstance(listed, dict):
        return False
    try:
        return all(_hash(os.path.join(folder, name)) == digest for name, digest in listed.items())
    except OSError:
        return False


def _unpack(archive: str, folder: str) -> None:
    """Raises: Refusal, if the archive names a place outside ``folder`` or lacks its own list of contents."""
    partial = folder + ".partial"
    tree.remove_tree(partial)
    with zipfile.ZipFile(archive) as bundle:
        faults = [name for name in bundle.namelist() if tree.path_fault(name)]
        if faults or sum(info.file_size for info in bundle.infolist()) > MAX_BYTES:
            raise Refusal("bad_request", "the libraries contain a file that is not allowed: %r" % faults[:1])
        bundle.extractall(partial)
    if not _intact(partial):
        tree.remove_tree(partial)
        raise Refusal("bad_request", "the libraries differ from their list of contents")
    tree.remove_tree(folder)
    os.rename(partial, folder)
