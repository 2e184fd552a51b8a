"""The programs that a CMakeLists.txt and those below it build."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from orchestrator.workspace.programs import Program, arguments
from orchestrator.workspace.sources import files_below, read_text

#: A program with its sources; programs of computed names or sources, or not beside their CMakeLists.txt.
_EXECUTABLE = re.compile(
    r"^\s*(?:cuda_)?add_executable\s*\(\s*([\w.+-]+)(?!\s+(?:ALIAS|IMPORTED|EXCLUDE_FROM_ALL)\b)(\s[^)]*)\)",
    re.MULTILINE | re.IGNORECASE,
)
_PROJECT = re.compile(r"^\s*project\s*\(\s*([\w.+-]+)", re.MULTILINE | re.IGNORECASE)
_COMMENT = re.compile(r"#\[\[.*?\]\]|#[^\n]*", re.DOTALL)
_NOT_PLAIN = re.compile(
    r"(?:EXECUTABLE_OUTPUT_PATH|RUNTIME_OUTPUT_DIRECTORY)\b|\badd_executable\s*\([^)]*\$\{", re.IGNORECASE
)


def lists_below(folder: Path) -> dict[Path, str]:
    """The CMakeLists.txt with their texts, without comments."""
    return {
        path: _COMMENT.sub("", read_text(path)) for path in files_below(folder) if path.name == "CMakeLists.txt"
    }  # fmt: skip


def programs(folder: Path) -> Iterator[Program]:
    """What the lists of ``folder`` build, relative to it; nothing if they compute a name, or put programs elsewhere."""
    lists = lists_below(folder)
    project = "".join(_PROJECT.findall(lists.get(folder / "CMakeLists.txt", ""))[:1])
    lists = {path: text.replace("${PROJECT_NAME}", project) for path, text in lists.items()}
    if any(_NOT_PLAIN.search(text) for text in lists.values()):
        return
    for path, text in lists.items():
        place = path.parent
        for name, rest in _EXECUTABLE.findall(text):
            command = shlex.quote(Path("build", place.relative_to(folder), name).as_posix())
            yield Program(command, arguments(read_text(place / source) for source in rest.split()))
