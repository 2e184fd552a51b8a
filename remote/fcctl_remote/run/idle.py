"""A machine whose last run has ended turns itself off soon, even if nobody comes to fetch the results: they keep."""

import time

from fcctl_remote import wire
from fcctl_remote.base.layout import Layout
from fcctl_remote.base.refusal import Refusal
from fcctl_remote.run import state as runs
from fcctl_remote.run.shutdown_timer import LeaseKeeper

#: Seconds between the run's end and the look at the timer.
PATIENCE_S = 5.0


def stop_soon(layout: Layout, run_id: str, seconds: float) -> bool:
    """Move the shutdown timer to ``seconds`` from now, unless another run is at work; whether it was moved.

    A controller that follows the run sets it as it likes, and is left a moment to do so. A timer that ends earlier
    stays, and where none is set none is made: the machine is not ours to power off then.
    """
    time.sleep(PATIENCE_S)
    if any(_is_live(layout, other) for other in layout.run_ids() if other != run_id):
        return False
    keeper = LeaseKeeper(layout)
    try:
        present = keeper.handle(wire.LeaseRequest("show"))
        if not present.armed or present.dry:
            return False
        reason = "run %s has ended, and nobody else is here" % run_id
        keeper.handle(wire.LeaseRequest("arm", deadline=time.time() + seconds, dry=False, reason=reason))
    except (Refusal, OSError):
        return False
    return True


def _is_live(layout: Layout, run_id: str) -> bool:
    run = layout.run(run_id)
    return not runs.is_finished(run) and runs.supervisor_pid(run) is not None
