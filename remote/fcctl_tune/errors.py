"""What a user of a search can meet: what happened, its cause, and what to do."""

from __future__ import annotations

import errno

from fcctl_remote.base.text import one_line

OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class TuneError(Exception):
    """A search cannot begin or go on; ``hint`` is what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class MissingDependency(TuneError):
    """This machine has not what the search needs."""


def of_system(error: OSError, folder: str) -> TuneError:
    """For a disk that is full, and whatever else the system refuses; ``folder`` is where, unless it says so itself."""
    where = error.filename or "a file below %s" % folder
    return TuneError(f"{where}: {error.strerror or error}", "once that is mended, the same command goes on from there")


def is_of_machine(error: OSError) -> bool:
    """Whether a disk is full or broken, or something else has run out, for whatever is tried."""
    return error.errno in OF_MACHINE


class SpecError(TuneError):
    """A spec is not right; ``key`` is the place, such as ``parameters.BLOCK`` or ``gates[1]``."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class StudyLocked(TuneError):
    """Another process has the study open."""


class StudyMismatch(TuneError):
    """The study on disk is of another search."""


class Failed(Exception):
    """A trial's fault, with the state it comes to."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, one_line(reason)
