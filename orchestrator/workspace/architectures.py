"""For which GPUs a repository's build files compile, and what of it ``fcctl init`` can set."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

#: ``sm_86``, ``compute_75``; not ``sm_90a``, whose kernels run nowhere else, nor a file ``sm_80.cu``.
_LITERAL = re.compile(r"\b(?:sm|compute)_\d+\b(?![.-])")
#: The GPU of the machine that compiles, which may have none.
_NATIVE = re.compile(r"-arch(?:itecture)?[= ]native\b")
#: CMake's ``set(CMAKE_CUDA_ARCHITECTURES 70)``, ``CUDA_ARCHITECTURES "75;86-real"``.
_CMAKE_LIST = re.compile(r"CUDA_ARCHITECTURES\W{1,2}(?:\d+|native)\b")
_ONE_GPU_ALONE = re.compile(r"\b(?:sm|compute)_\d+[af]\b|CUDA_ARCHITECTURES[^)\n]*\d[af]\b")
_FILE_NAME = re.compile(r"\b(?:sm|compute)_\d+[.-]\w")
#: Make's variables that are numbers of GPUs: ``sm_$(SM)``, ``compute_$(subst .,,${COMPUTE})``; and loops over them.
_MAKE_VARIABLE = re.compile(r"\b(?:sm|compute)_\$[({](?:subst [^$()]*\$[({])?(\w+)[)}]")
_LOOP = re.compile(r"\$[({]foreach\s+(\w+)\s*,\s*\$[({](\w+)[)}]")
#: CMake's ``CUDA_ARCHITECTURES ${GPUCC}``, and the variables that may be given: not set, or in the cache.
_CMAKE_VARIABLE = re.compile(r'CUDA_ARCHITECTURES["\s]+\$\{(?!CMAKE_)(\w+)\}')

_SETTABLE = r"NOT\s+\(?\s*(?:DEFINED\s+)?%(name)s\b|set\s*\(\s*%(name)s\b[^)]*\bCACHE\b"
#: What rewrites the three patterns above.
_IN_FLAGS = r"s/\b(sm|compute)_[0-9]+\b/\1_$FCCTL_CUDA_ARCH/g"
_IN_NATIVE = r"s/(-arch(itecture)?[= ])native\b/\1sm_$FCCTL_CUDA_ARCH/g"
_IN_LISTS = r"s/(CUDA_ARCHITECTURES\W{1,2})([0-9]+|native)(-[a-z]+)?([; ]+[0-9]+(-[a-z]+)?)*/\1$FCCTL_CUDA_ARCH/g"


def rewritten(texts: Mapping[Path, str]) -> dict[Path, str]:
    """The files that name GPUs by number, and the options with which sed puts the target's in their place."""
    found = {}
    for path, text in texts.items():
        if not _ONE_GPU_ALONE.search(text) and not _FILE_NAME.search(text):
            patterns = {_IN_FLAGS: _LITERAL, _IN_NATIVE: _NATIVE, _IN_LISTS: _CMAKE_LIST}
            commands = [command for command, pattern in patterns.items() if pattern.search(text)]
            if commands:
                found[path] = " ".join(f'-e "{command}"' for command in commands)
    return found


def commands(rewritten_files: Iterable[tuple[str, str]]) -> str:
    """A step's lines that put the target's GPU in the place of those that build files name: (path, sed's options)."""
    files: dict[str, list[str]] = {}
    for path, options in rewritten_files:
        files.setdefault(options, []).append(path)
    lines = [f"sed -i -E {options} {shlex.join(paths)}\n" for options, paths in files.items()]
    return (f"# {_WHY}\n" if lines else "") + "".join(lines)


_WHY = "in this run's copy of the source, the target's GPU replaces those that the build files name"


def make_variables(text: str) -> tuple[str, ...]:
    """The variables of Makefiles that hold the numbers of the GPUs."""
    loops = dict(_LOOP.findall(text))
    return tuple(dict.fromkeys(loops.get(name, name) for name in _MAKE_VARIABLE.findall(text)))


def cmake_variables(text: str) -> tuple[str, ...]:
    """The variables of CMake that the user may set to the GPU's number."""
    names = dict.fromkeys(_CMAKE_VARIABLE.findall(text))
    return tuple(name for name in names if re.search(_SETTABLE % {"name": name}, text))
