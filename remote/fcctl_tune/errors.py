"""The errors of a search that its user can meet: what happened, its cause, and what to do."""

from __future__ import annotations

import errno
import sys
from typing import Callable

from fcctl_remote.base.text import one_line

OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class TuneError(Exception):
    """A search cannot begin or continue; ``hint`` says what to do, ``exit_code`` is that of its command."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class MissingDependency(TuneError):
    """This machine lacks what the search needs."""

    exit_code = 69  # EX_UNAVAILABLE


def of_system(error: OSError, folder: str) -> TuneError:
    """For a full disk or another refusal of the system, below ``folder`` unless the error names a file."""
    where = error.filename or "a file below %s" % folder
    return TuneError(
        f"{where}: {error.strerror or error}", "correct this, then run the same command again: the search continues"
    )


def is_of_machine(error: OSError) -> bool:
    """Whether a disk is full or broken or memory has run out, which is no fault of a trial."""
    return error.errno in OF_MACHINE


def exit_code_of(command: Callable[[], int], folder: str) -> int:
    """Run ``command``, whose files are below ``folder``; print the error that ends it."""
    try:
        return command()
    except (TuneError, OSError) as error:
        failure: TuneError = of_system(error, folder) if isinstance(error, OSError) else error
    print("error: %s" % failure, file=sys.stderr, flush=True)
    return failure.exit_code


class SpecError(TuneError):
    """A spec is wrong at ``key``, such as ``parameters.BLOCK`` or ``gates[1]``."""

    exit_code = 2

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class StudyLocked(TuneError):
    """Another process has the study open."""


class StudyMismatch(TuneError):
    """The study on disk is of another search."""

    exit_code = 2


class Failed(Exception):
    """A trial's fault, with the state that it gets."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, one_line(reason)
