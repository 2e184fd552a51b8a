"""Which file names of a host that is not trusted may become paths of a run's folder: those that mean the same file on a
file system that folds case and Unicode forms (macOS) and on one that does not."""

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


#: Names that programs of this computer act on by themselves, folded. Whatever is hidden: version control, editors,
#: shells and tools that choose versions keep their settings there.
_ACTING = re.compile(r"\..+|_darcs|cvs")
#: The same for files: HEAD of a bare repository, a workspace's fcctl.toml, files that choose versions of tools, and the
#: files that pytest, go test, jest, prettier, eslint and bazel load from any folder below the one they are started in.
#: A Makefile is not listed: it is read only by a make that the user starts in its folder.
_ACTING_FILES = re.compile(
    r"head|fcctl\.toml|_fossil_|mise(\.local)?\.toml|rust-toolchain(\.toml)?|conftest\.py|test_.*\.py|.*_test\.(py|go)"
    r"|.*\.(test|spec|config)\.[cm]?[jt]sx?|package\.json|build(\.bazel)?"
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


def harmless(path: str) -> str:
    """Returns the path under which the host's ``path`` is stored: names that programs act on become ``_NAME_``. Check
    ``path`` with :func:`fault` before, and the result again."""
    *folders, name = path.split("/")
    acts = _acts(name) or _ACTING_FILES.fullmatch(folded(name))
    return "/".join([*(f"_{part}_" if _acts(part) else part for part in folders), f"_{name}_" if acts else name])


def renamed(place: str) -> tuple[str, str] | None:
    """Of the first name in ``place`` that :func:`harmless` made, with the folders above it: as sent, as stored."""
    parts = place.split("/")
    for count, part in enumerate(parts, 1):
        above, sent = parts[: count - 1], part[1:-1]
        if part == f"_{sent}_" and harmless(sent) == part and (count == len(parts) or _acts(sent)):
            return "/".join([*above, sent]), "/".join([*above, part])
    return None


def _acts(part: str) -> bool:
    return _ACTING.fullmatch(folded(part)) is not None


def folded(path: str) -> str:
    """The key of ``path`` on a file system that ignores case and Unicode form: equal keys are one file."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _part_is_safe(part: str) -> bool:
    # A decomposed name (as HFS+ stores it) is the longest form it can take on disk.
    return part not in {"", ".", ".."} and len(unicodedata.normalize("NFD", part).encode()) <= MAX_PART_BYTES
