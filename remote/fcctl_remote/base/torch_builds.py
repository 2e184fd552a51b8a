"""Builds of torch's extensions that outlive runs: only what changed is compiled.

``torch.utils.cpp_extension.load`` writes absolute paths of the source into build.ninja, and each run has a source
folder of its own. So a link in the build folder takes the place of the run's folder, and a file gets the time at which
its content last changed: another clock's, or that of an edit during a build, would let ninja miss a change.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time

from fcctl_remote.base import files
from fcctl_remote.record import Any

NINJA_FILE, LINK, RECORD = "build.ninja", "fcctl-source", "fcctl-source.json"
#: Larger files share their content, and their times, with the tree of later runs.
MOST_BYTES = 1024 * 1024


def prepare(build: str, source: str) -> None:
    """Makes ``build``, where torch just wrote build.ninja for files below ``source``, compare with older builds."""
    path, link = os.path.join(build, NINJA_FILE), os.path.join(build, LINK)
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    below = re.compile(re.escape(source) + r"(?![\w.-])")
    if not below.search(text):
        return
    known = files.read_object(os.path.join(build, RECORD)) or {}
    record = _record(source, known, _later_than(build))
    files.write_atomic(os.path.join(build, RECORD), files.to_json(record))
    for name, (_, changed) in record.items():
        os.utime(os.path.join(source, name), ns=(changed, changed))
    temporary = link + ".new"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(source, temporary)
    os.rename(temporary, link)
    files.write_atomic(path, below.sub(lambda _: link, text).encode(), durable=False)


def _later_than(build: str) -> int:
    """Now, ns, and in any case after all that was built, whatever the clock did."""
    with os.scandir(build) as entries:
        newest = max(entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries)
    return max(time.time_ns(), newest + 1)


def _record(source: str, known: dict[str, Any], now: int) -> dict[str, Any]:
    """Each file's content, and when it last changed."""
    record: dict[str, Any] = {}
    for top, children in files.walk(source):
        for child in children:
            facts = child.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 and facts.st_size <= MOST_BYTES:
                with open(child.path, "rb") as stream:
                    digest = hashlib.sha256(stream.read()).hexdigest()
                name = os.path.relpath(os.path.join(top, child.name), source)
                before = known.get(name) or [None, now]
                record[name] = [digest, before[1] if before[0] == digest else now]
    return record
