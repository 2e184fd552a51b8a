"""Whether a run's machine is still there while the run is on it, and what became of it if it is not."""

from __future__ import annotations

from orchestrator.domain.cloud import Machine, Power
from orchestrator.domain.endpoint import endpoint
from orchestrator.domain.stopped import Stopped, why_stopped
from orchestrator.errors import FcctlError, HostError, MachineStopped
from orchestrator.workflows.held import Held
from orchestrator.workflows.ready import make_ready

#: How often the cloud is asked about a machine whose link is lost, seconds.
DOUBT_EVERY_S = 5.0
#: How long a machine that runs, and was reached before, is given to answer again, seconds.
REVIVE_S = 30.0


class Watch:
    """Asks the cloud about the machine of one run."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._services = held.services
        self._target = held.target
        self._doubted = float("-inf")

    def check(self) -> None:
        """Raise MachineStopped if the cloud says that the machine does not run any more.

        If it does run, its address may be another one by now, and is remembered. A cloud that does not answer proves
        nothing.
        """
        now = self._services.clock.monotonic()
        if now - self._doubted < DOUBT_EVERY_S:
            return
        self._doubted = now
        try:
            stopped = self.why_stopped()
        except FcctlError:
            return
        if stopped is not None:
            raise _error(stopped)

    def why_stopped(self) -> Stopped | None:
        """What became of the machine; None while it runs.

        Raises:
            CloudError, AuthError: the cloud does not say.
        """
        known = self._held.last_known()
        if not known:
            return None
        cloud = self._services.clouds.open(self._target)
        zone, name = str(known["zone"]), self._target.instance
        seen = cloud.machine(zone, name)
        if seen is not None and seen.id == known["instance_id"] and seen.power is Power.RUNNING:
            self._remember(seen)
            return None
        lines = self._held.entries()
        timer = next((e.data.get("deadline") for e in reversed(lines) if e.kind == "armed"), None)
        money_until = next((e.data.get("stop_by") for e in reversed(lines) if e.kind == "submit"), None)
        history, started = cloud.operations(zone, name), known.get("started")
        return why_stopped(name, str(known["instance_id"]), seen, history, timer, started, money_until)

    def revive(self) -> None:
        """After the link could not be opened: whatever it takes to open it, if the machine runs.

        Raises:
            MachineStopped: it does not run.
            FcctlError: it runs, and cannot be reached; or the cloud does not say.
        """
        stopped = self.why_stopped()
        if stopped is not None:
            raise _error(stopped)
        held = self._held
        zones = [str(held.last_known()["zone"])] if held.last_known() else list(held.zones())
        if not zones:
            raise MachineStopped(f"{self._target.instance} was not woken yet", how="unknown", status="lost")
        machine = self._services.clouds.open(self._target).machine(zones[0], self._target.instance)
        if machine is not None and machine.power is Power.RUNNING:
            patient = self._target.model_copy(update={"wake_timeout_s": REVIVE_S})
            make_ready(self._services, patient, machine, held.link, held.log)

    def _remember(self, machine: Machine) -> None:
        """Its address as it is now: a machine that was restarted has another one."""
        known = self._services.book.known(machine.project, machine.name)
        if known is None or known.instance_id != machine.id:
            return
        try:
            way = endpoint(
                machine, known.host_keys, user=known.user, identity_file=known.identity_file, target=self._target,
                now=self._services.clock.now(),
            )  # fmt: skip
        except HostError:
            return
        self._services.book.remember(way)


def _error(stopped: Stopped) -> MachineStopped:
    return MachineStopped(stopped.reason, how=stopped.how, status=stopped.status, at=stopped.at, disk=stopped.disk)
