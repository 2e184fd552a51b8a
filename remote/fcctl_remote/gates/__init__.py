"""What verdicts do to a run: whether the next step runs, and whether the run may pass."""

from __future__ import annotations

from collections.abc import Iterable

from fcctl_remote.wire import StepResult, StepSpec

#: The fix of an undecided gate that has no hint of its own.
FIX = "add a step that measures this value; or set 'optional: true' on the gate, if the run may pass without the value"


def goes_on(spec: StepSpec, result: StepResult) -> bool:
    """Whether the next step runs after this one."""
    if spec.optional or result.status in ("passed", "warned"):
        return True
    return spec.unavailable_ok and result.status == "unavailable"


def incomplete(steps: Iterable[StepResult]) -> str | None:
    """One line that says why a run of these steps, in which nothing failed, is ``incomplete``: the step, its gate, why
    that had no value, and the fix; None if it passed."""
    missing = [
        (step, gate) for step in steps for gate in step.gates if gate.verdict == "unavailable" and not gate.optional
    ]
    if not missing:
        return None
    step, gate = missing[0]
    more = " (and %d more)" % (len(missing) - 1) if len(missing) > 1 else ""
    line = "step '%s': gate without a value: %s%s: %s" % (step.id, gate.expr[:300], more, gate.hint or FIX)
    return " ".join(line.split())
