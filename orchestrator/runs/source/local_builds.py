"""Untracked folders that work only on this computer: virtual environments and CMake build folders have its paths in
them."""

from __future__ import annotations

from collections.abc import Callable, Set
from posixpath import basename, dirname

_VENV, _CMAKE = "pyvenv.cfg", "CMakeCache.txt"


def leave_out(untracked: Set[str], paths: Set[str]) -> tuple[set[str], list[str]]:
    """Returns which ``untracked`` files of ``paths`` are not sent, and a line for each such folder. Of a source folder
    with a CMake cache, only CMake's own files are left out."""
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
