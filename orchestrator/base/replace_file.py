"""A file of this computer's own, replaced as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Make ``path``, whose folder exists, hold ``content``, readable by this user only.

    A reader finds the old content or the new. Several processes may do so at once; one of them wins, which is why none
    writes to a name that another could know.

    Args:
        durable: on disk, name and all, when this returns; else a crash may leave an empty file, which is good enough
            for what can be made again and is checked when it is read.

    Raises:
        OSError: nothing was changed.
    """
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    if durable:
        from orchestrator.base.files import sync_folder

        sync_folder(path.parent)
