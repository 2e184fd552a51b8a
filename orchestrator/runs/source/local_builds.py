"""Untracked folders that are of use on the computer alone on which they were made: its paths are written into them.

A virtual environment of another machine does not start, and CMake refuses a cache of another folder. Both are large,
and both are named in most .gitignore files; here are those that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from posixpath import basename, dirname

_VENV, _CMAKE = "pyvenv.cfg", "CMakeCache.txt"


def leave_out(untracked: Set[str], paths: Set[str]) -> tuple[set[str], list[str]]:
    """Which ``untracked`` ones of all ``paths`` are not to be sent, and a line for each folder of which none are.

    Of a source folder in which CMake was run, only what CMake keeps there: the sources beside it are sent.
    """
    left, said = set[str](), []
    for path in sorted(untracked):
        kind, folder = basename(path), dirname(path)
        if path in left or kind not in (_VENV, _CMAKE):
            continue
        if kind == _CMAKE and (folder == "" or f"{folder}/CMakeLists.txt" in paths):
            left |= {path, *filter(_below(f"{folder}/CMakeFiles".lstrip("/")), untracked)}
            said.append(f"{path}: CMake's cache of this computer")
        elif folder:
            left |= set(filter(_below(folder), untracked))
            what = "a virtual environment" if kind == _VENV else "CMake's build folder"
            said.append(f"{folder}: {what} of this computer")
    return left, said


def _below(folder: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(folder + "/")
