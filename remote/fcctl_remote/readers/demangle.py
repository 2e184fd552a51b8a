"""Readable names of mangled C++ functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fcctl_remote.base.programs import run, which

_DEMANGLERS = ("cu++filt", "c++filt", "llvm-cxxfilt")
_TIMEOUT_S = 5.0
MAX_NAMES = 5000


def readable(mangled: list[str], env: Mapping[str, str]) -> dict[str, str]:
    """Mangled -> readable name without return type and parameters: ``fc::attention_tile<32, 32, __half>``.

    Without a demangler only the plain, nested part is recovered: ``fc::attention_tile``. A name that is not mangled,
    as of ``extern "C"`` kernels, is absent from the result.
    """
    names = sorted({m for m in mangled if re.match(r"_Z[A-Za-z0-9_.$]+\Z", m)})[:MAX_NAMES]
    if not names:
        return {}
    for program in filter(None, (which(name, env) for name in _DEMANGLERS)):
        plain = _run(program, names, env)
        if plain:
            return plain
    return {name: _plain(name) for name in names}


def _run(program: str, names: list[str], env: Mapping[str, str]) -> dict[str, str]:
    answers = run([program, "-p"], _TIMEOUT_S, env, stdin="\n".join(names) + "\n")
    lines = answers.out.splitlines()
    if not answers.ok or len(lines) != len(names):
        return {}
    return {name: line.strip() or name for name, line in zip(names, lines)}  # noqa: B905


def _plain(name: str) -> str:
    """The identifiers of ``_ZN2fc4tileI..`` or ``_Z4tile..``, joined; the mangled name if there are none."""
    at = 3 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while True:
        digits = re.compile(r"[0-9]{1,4}").match(name, at)
        if digits is None:
            break
        start = digits.end()
        at = start + int(digits.group())
        parts.append("(anonymous namespace)" if name[start:at].startswith("_GLOBAL__N") else name[start:at])
        if not name.startswith("_ZN"):
            break
    return "::".join(parts) if parts and all(parts) and at <= len(name) else name
