"""Names of files that a host sent: which of them may become paths below a run's folder.

The host is not trusted, and the laptop's file system may fold case and Unicode forms (macOS) or not (Linux): a name is
taken only if it means one and the same file, inside the folder, on both.
"""

from __future__ import annotations

import re
import unicodedata

MAX_PART_BYTES = 255
MAX_PATH_BYTES = 700  # macOS allows 1024 for a whole path, and the workspace's own path comes first
MAX_DEPTH = 32

#: What the controller itself keeps at the top of a run's folder.
RESERVED = frozenset({"run.json", "plan.json", "journal.jsonl"})
#: How the controller's unfinished files begin, so that a host's file cannot be mistaken for one.
UNFINISHED = ".fcctl-"

# Characters that change the terminal, the direction of text, or nothing visible at all; half a surrogate pair.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def fault(path: str) -> str | None:
    """None if ``path`` is a relative, ``/``-separated name safe to create; else ``bad_name`` or ``reserved``."""
    if not path or len(path) > MAX_PATH_BYTES or _UNPRINTABLE.search(path) or "\\" in path:
        return "bad_name"
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or not all(map(_part_is_safe, parts)):
        return "bad_name"
    if len(unicodedata.normalize("NFD", path).encode()) > MAX_PATH_BYTES:
        return "bad_name"
    first = folded(parts[0])
    if (len(parts) == 1 and first in RESERVED) or first.startswith(UNFINISHED):
        return "reserved"
    return None


def folded(path: str) -> str:
    """What a case- and form-insensitive file system takes ``path`` for: equal keys mean one file there."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _part_is_safe(part: str) -> bool:
    # A decomposed name (as HFS+ stores it) is the longest form it can take on disk.
    return part not in {"", ".", ".."} and len(unicodedata.normalize("NFD", part).encode()) <= MAX_PART_BYTES
