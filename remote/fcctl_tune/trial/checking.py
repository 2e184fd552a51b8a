"""A trial's check by the spec's command, on each case; and which files of the source such a check overwrites."""

from __future__ import annotations

from typing import Collection, List, Sequence

from fcctl_tune.errors import Failed
from fcctl_tune.search.records import Trial
from fcctl_tune.trial import tasks
from fcctl_tune.trial.tasks import TrialSpec

#: At most so many overwritten files are tried one by one, to see which the check needs.
MOST_OUTPUTS = 16


def check(trial_spec: TrialSpec, trial: Trial, timeout_s: float) -> None:
    """Check on each case. Files that the default's check overwrites and does not need are hidden from other checks.

    Raises:
        Failed: it is wrong, crashes or hangs on one of them.
    """
    known = trial_spec.outputs
    hidden = {name for made in known.values() for name in made}
    for case in trial_spec.cases:
        if trial.number == 0 and case not in known:
            trial_spec.record_outputs(case, _outputs(trial_spec, trial, case, timeout_s))
        else:
            _carry_out(trial_spec, trial, case, timeout_s, hidden)


def _outputs(trial_spec: TrialSpec, default: Trial, case: str, timeout_s: float) -> List[str]:
    """Files of the source that the default's check overwrites and does not need; one that it edits is an input. Raises:
    Failed."""

    def does_without(names: Sequence[str]) -> bool:
        try:
            _carry_out(trial_spec, default, case, timeout_s, names)
        except Failed:
            return False
        return True

    made = _carry_out(trial_spec, default, case, timeout_s)
    if not made or does_without(made):
        return made
    return [name for name in made[:MOST_OUTPUTS] if does_without([name])] if len(made) > 1 else []


def _carry_out(
    trial_spec: TrialSpec, trial: Trial, case: str, timeout_s: float, without: Collection[str] = ()
) -> List[str]:
    """Run the check without the files ``without`` of the source; returns those that it overwrote. Raises: Failed."""
    stage, more = trial_spec.check, {"TUNE_CASE": case, "TUNE_SEED": trial_spec.seed}
    assert stage is not None  # noqa: S101
    try:
        return tasks.carry_out(trial_spec, trial, "check", stage, timeout_s, without, **more)
    except Failed as failed:
        where = "%s: " % case if len(trial_spec.cases) > 1 else ""
        raise Failed(failed.state, where + failed.reason) from None
