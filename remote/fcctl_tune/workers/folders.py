"""Folders of a search on one machine: for builds and logs, for its workers' files, and a member's own."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from typing import Iterator

from fcctl_remote.base import files
from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.trial.folder import remove

#: The folder for builds and logs, unless another is named; within it, the folder of workers' files.
WORK, WORKERS = ".fcctl-tune", "workers"


def claim(work: str) -> int:
    """Make the folder ``work``, hidden from Git; the descriptor that holds its lock. Raises MissingDependency: it
    cannot be made; TuneError: another search uses it."""
    try:
        for name in ("builds", "logs", WORKERS):
            os.makedirs(os.path.join(work, name), exist_ok=True)
        ignore = os.path.join(work, ".gitignore")
        if not os.path.exists(ignore):
            files.write_atomic(ignore, b"*\n", durable=False)
        lock = files.try_lock(os.path.join(work, "lock"))
    except OSError as error:
        raise MissingDependency("%s: %s" % (error.filename, error.strerror), "choose another folder: --work") from None
    if lock is None:
        raise TuneError(
            "another search uses %s" % work, "wait until that search ends, or choose another folder: --work"
        )
    for pattern in (os.path.join("builds", "*.room"), os.path.join(WORKERS, "*")):  # of workers that were killed
        for path in glob.glob(os.path.join(glob.escape(work), pattern)):
            with contextlib.suppress(OSError):  # reported when it is used
                remove(path)
    return lock


@contextlib.contextmanager
def for_workers(work: str) -> Iterator[str]:
    """A new folder for the files of a pool of workers, removed at the end."""
    path = tempfile.mkdtemp(dir=os.path.join(work, WORKERS))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
