"""The programs that a CMakeLists.txt and those below it build."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from orchestrator.workspace.programs import MAIN, Program, arguments
from orchestrator.workspace.sources import files_below, read_text

#: A program with its sources; where programs are not put beside their CMakeLists.txt.
_EXECUTABLE = re.compile(
    r"^\s*(?:cuda_)?add_executable\s*\(\s*([\w.+-]+)(?!\s+(?:ALIAS|IMPORTED|EXCLUDE_FROM_ALL)\b)(\s[^)]*)\)",
    re.MULTILINE | re.IGNORECASE,
)
_PROJECT = re.compile(r"^\s*project\s*\(\s*([\w.+-]+)", re.MULTILINE | re.IGNORECASE)
_COMMENT = re.compile(r"#\[\[.*?\]\]|#[^\n]*", re.DOTALL)
_OUTPUT_FOLDER = re.compile(r"(?:EXECUTABLE_OUTPUT_PATH|RUNTIME_OUTPUT_DIRECTORY)\b")


def lists_below(folder: Path) -> dict[Path, str]:
    """The CMakeLists.txt with their texts, without comments."""
    return {
        path: _COMMENT.sub("", read_text(path)) for path in files_below(folder) if path.name == "CMakeLists.txt"
    }  # fmt: skip


def programs(folder: Path) -> Iterator[Program]:
    """What the lists of ``folder`` build and can be run; commands are relative to it."""
    lists = lists_below(folder)
    project = "".join(_PROJECT.findall(lists.get(folder / "CMakeLists.txt", ""))[:1])
    moved = any(_OUTPUT_FOLDER.search(text) for text in lists.values())
    for path, text in lists.items():
        place = path.parent
        for name, rest in _EXECUTABLE.findall(text.replace("${PROJECT_NAME}", project)):
            built = shlex.quote(Path("build", place.relative_to(folder), name).as_posix())
            command = f'"$(find . -type f -perm -u+x -name {name} | head -n 1)"' if moved else built
            yield Program(command, arguments(_sources(place, rest)))


def _sources(place: Path, listed: str) -> list[str]:
    """The texts of a program's sources; of those below its list that have a ``main``, if there is one alone and CMake
    computes the names."""
    texts = [read_text(place / name) for name in listed.split()]
    if "${" not in listed or any(MAIN.search(text) for text in texts):
        return texts
    below = [read_text(path) for path in files_below(place) if path.suffix in (".cu", ".cpp", ".cc", ".cxx", ".c")]
    mains = [text for text in below if MAIN.search(text)]
    return mains if len(mains) == 1 else []
