"""``last``, ``last:JOB``, ``last~N``, ``last:JOB~N``: runs by how long ago they were."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.base.errors import RunNotFound

_NAME = re.compile(r"last(?::(?P<job>[^~]*))?(?P<back>~[0-9]{0,4})?")


@dataclass(frozen=True)
class Last:
    """The run ``back`` before the newest one, of ``job`` if it is given."""

    job: str | None
    back: int

    @classmethod
    def of(cls, name: str) -> Last | None:
        """What ``name`` means, if it is one of these; ``last~`` is ``last~1``, as in git."""
        match = _NAME.fullmatch(name.strip())
        if match is None:
            return None
        back = match["back"]
        return cls(match["job"] or None, 0 if back is None else int(back[1:] or 1))

    def missing(self, there: int, kind: str = "") -> RunNotFound:
        """That only so many runs of the ``kind`` are ``there``."""
        of = f" of job {self.job!r}" if self.job else ""
        going_on = "; fcctl ps lists those that go on" if kind else ""
        if not there:
            hint = f"start one: fcctl run {self.job or 'JOB'}{going_on}"
            return RunNotFound(f"there is no {kind}run{of} yet", hint=hint)
        hint = f"fcctl results ls{f' --job {self.job}' if self.job else ''} lists them{going_on}"
        return RunNotFound(
            f"there {'are' if there > 1 else 'is'} only {there} {kind}run{'s' * (there > 1)}{of}", hint=hint
        )
