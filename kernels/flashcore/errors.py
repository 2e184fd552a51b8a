"""What can go wrong, as a person should read it: what happened, why, and what to type next.

FlashcoreError
+-- UsageError        no such variant, parameter, shape (exit 2)
+-- Unavailable       this machine lacks something: torch, nvcc, ncu, a GPU (exit 69, EX_UNAVAILABLE)
+-- BuildFailed       the compiler refused the source (exit 1)
+-- Unsupported       inputs the kernel does not take; refused before the launch (exit 1)
+-- LaunchFailed      the kernel or the CUDA runtime reported an error (exit 1)
+-- AuditFailed       what was timed is not the work, or not all of it (exit 1)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlashcoreError(Exception):
    exit_code = 1

    def __init__(self, message: str, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        lines += ["cause: " + self.cause] if self.cause else []
        lines += ["hint: " + self.hint] if self.hint else []
        return "\n".join(lines)


class UsageError(FlashcoreError):
    exit_code = 2


class Unavailable(FlashcoreError):
    exit_code = 69


class BuildFailed(FlashcoreError):
    pass


class Unsupported(FlashcoreError):
    pass


class LaunchFailed(FlashcoreError):
    pass


class AuditFailed(FlashcoreError):
    pass


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean X? known: A, B`` for the hint of a name that does not exist."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    guess = f"did you mean {close[0]}? " if close else ""
    return guess + "known: " + ", ".join(known)
