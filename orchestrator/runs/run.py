"""``fcctl run``: one command from source to verified results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.base.errors import FcctlError, HostError, HostFault, HostUnreachable, LinkLost
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.targets import StartOptions
from orchestrator.results.records import RunRecord
from orchestrator.runs.drive import Driver
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import Stage
from orchestrator.runs.services import Services
from orchestrator.runs.source.api import Source

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun


class Detached(Exception):
    """The run continues at the host without this controller, after a signal or Ctrl-C."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class NeverSubmitted(KeyboardInterrupt):
    """Ctrl-C, or a signal, before the host had the run, which is complete."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(record.message)
        self.record = record


@dataclass(frozen=True)
class Finished:
    record: RunRecord
    driver: Driver


def run(
    services: Services,
    link: ReconnectingHost,
    saved: SavedPlan,
    source: Source,
    *,
    detach: bool = False,
    waking: StartOptions | None = None,
    begun: Callable[[], None] | None = None,
) -> Finished | None:
    """Launches a planned run and, unless ``detach``, collects it. ``begun`` is called once the run is on disk. Raises
    Detached on Ctrl-C once the host may have the run, NeverSubmitted before, BudgetError if it does not fit the caps,
    FcctlError if it cannot be submitted or its host stays unreachable."""
    active = services.store.begin(saved.plan.run_id, saved.to_json())
    try:
        if saved.worst_case_usd > 0:
            from orchestrator.runs.cost.spending import set_aside

            set_aside(services, active, saved)
        driver = Driver(services, link, active, "launch", source, waking)
        driver.begin()
        if begun is not None:
            begun()
    except BaseException:
        active.release()
        raise
    return collect_and_finish(driver, link, active, detach=detach)


def collect_and_finish(
    driver: Driver, link: ReconnectingHost, active: FileActiveRun, *, detach: bool = False
) -> Finished | None:
    """The rest of :func:`run` for a run that has begun; releases run and host."""
    try:
        _launch(driver)
        if detach and not driver.ended_here:
            active.journal.append_if_possible("detached")
            return None
        return Finished(driver.finish(), driver)
    except KeyboardInterrupt:
        raise _interrupted(driver, active) from None
    except (HostUnreachable, LinkLost) as e:
        raise _left_alone(e, driver) from e
    finally:
        active.release()
        link.close()


def _launch(driver: Driver) -> None:
    try:
        driver.launch()
    except FcctlError as e:
        if not driver.submitted or (isinstance(e, HostFault) and driver.unknown_there()):
            driver.abandon(f"{e.message}{f' ({e.cause})' if e.cause else ''}", "error", e.hint)
        raise


def _interrupted(driver: Driver, active: FileActiveRun) -> BaseException:
    if driver.ended_here:
        return NeverSubmitted(driver.finish())
    if driver.state.stage >= Stage.ENDED:
        return Detached(driver.run_id)
    if driver.submitted:
        active.journal.append_if_possible("detached")
        return Detached(driver.run_id)
    return NeverSubmitted(
        driver.abandon("interrupted before the run was submitted; no step ran on the machine", "cancelled")
    )


def _left_alone(error: HostUnreachable | LinkLost, driver: Driver) -> HostError:
    abandoned = driver.state.without_outcome == "abandoned"
    if not driver.submitted or (abandoned and isinstance(error, HostUnreachable)):
        return error  # with what keeps from getting there, and its own cure
    if abandoned:
        hint = f"no step was started there; to find the problem: fcctl doctor --on {driver.saved.target.name}"
        return LinkLost(error.message, cause=error.cause, hint=hint)
    return LinkLost(
        error.message,
        cause=error.cause,
        hint=f"the run continues on the machine; to follow it again: fcctl attach {driver.run_id}",
    )
