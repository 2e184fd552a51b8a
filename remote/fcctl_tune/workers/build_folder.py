"""The folder where a machine builds and keeps its logs, for one search at a time."""

from __future__ import annotations

import contextlib
import glob
import os

from fcctl_remote.base import files
from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.trial.folder import remove

NAME = ".fcctl-tune"


def claim(work: str) -> int:
    """Make the folder ``work``, which ``git`` shall not see; the descriptor that holds its lock.

    Raises:
        Lacking: it cannot be made.
        TuneError: another search is at work there.
    """
    try:
        for folder in (os.path.join(work, "builds"), os.path.join(work, "logs")):
            os.makedirs(folder, exist_ok=True)
        ignore = os.path.join(work, ".gitignore")
        if not os.path.exists(ignore):
            files.write_atomic(ignore, b"*\n", durable=False)
        lock = files.try_lock(os.path.join(work, "lock"))
    except OSError as error:
        raise MissingDependency("%s: %s" % (error.filename, error.strerror), "choose another folder: --work") from None
    if lock is None:
        raise TuneError("another search is at work in %s" % work, "wait for it, or give this one its own --work")
    for left in glob.glob(os.path.join(glob.escape(work), "builds", "*.room")):  # by a worker that was killed
        with contextlib.suppress(OSError):  # who enters it next is told
            remove(left)
    return lock
