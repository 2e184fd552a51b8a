"""``fcctl doctor --on`` a machine of a cloud: could it be woken? Without waking it; each finding with one fix."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from orchestrator.base.clock import WRONG_S, clock_command
from orchestrator.base.errors import FcctlError
from orchestrator.base.installation import Finding, Status, to_repair
from orchestrator.machines.cloud import MANAGED_LABEL, Machine, Power, Quota, region_of
from orchestrator.machines.interfaces import Cloud, Clouds, MachineCache
from orchestrator.machines.provision.endpoint import GUEST_ATTRIBUTES_ITEM, on_loopback
from orchestrator.machines.targets import CloudTarget, GcpTarget
from orchestrator.providers.gcp import refusals

GCLOUD_PAGE = "https://cloud.google.com/sdk/docs/install"
_GCLOUD_TIMEOUT_S = 30.0
#: The permissions to start and stop a machine.
NEEDED = (
    "compute.instances.get", "compute.instances.start", "compute.instances.stop",
    "compute.instances.setScheduling", "compute.instances.setLabels", "compute.instances.setMetadata",
    "compute.instances.getGuestAttributes",
)  # fmt: skip


class CloudCheckup:
    """The findings about one target; :attr:`machine` is its machine afterwards, if there is one."""

    def __init__(self, target: CloudTarget, clouds: Clouds, book: MachineCache) -> None:
        if not isinstance(target, GcpTarget):
            raise TypeError(f"{target.name} is not a Compute Engine machine")
        self.target = target
        self.machine: Machine | None = None
        self._clouds = clouds
        self._book = book
        self._section = f"target {target.name}"

    def findings(self) -> Iterator[Finding]:
        """In the order in which they would stop a run; those that need the cloud end with the first that fails."""
        yield self._key()
        if self.target.iap or self.target.os_login:
            yield self._gcloud()
        library = self._library()
        yield library
        if library.status == "fail":
            return
        try:
            cloud = self._clouds.open(self.target)
            yield from self._account(cloud)
            yield from self._machine(cloud)
            yield from self._quotas(cloud)
            yield from self._firewall(cloud)
        except FcctlError as error:
            name = "credentials" if "application-default" in (error.hint or "") else "cloud"
            yield self._finding(name, "fail", error.one_line, error.hint)

    def _finding(self, name: str, status: Status, message: str, fix: str | None = None) -> Finding:
        return Finding(self._section, name, status, message, fix)

    # ------------------------------------------------------------------------------------------------- this computer
    def _key(self) -> Finding:
        if self.target.identity_file is None:
            return self._finding("login key", "ok", "fcctl creates one at the first start")
        path = Path(os.path.expandvars(self.target.identity_file)).expanduser()
        if not path.is_file():
            return self._finding("login key", "fail", f"{path} does not exist", f"ssh-keygen -t ed25519 -f {path}")
        if not os.access(path, os.R_OK):
            return self._finding("login key", "fail", f"{path} cannot be read", f"chmod 600 {path}")
        if path.stat().st_mode & 0o077:
            why = f"{path} can be read by other users, so ssh ignores it"
            return self._finding("login key", "fail", why, f"chmod 600 {path}")
        return self._finding("login key", "ok", f"{path}")

    def _gcloud(self) -> Finding:
        """The tunnel and OS Login are gcloud's work, with credentials of its own."""
        use = "Identity-Aware Proxy" if self.target.iap else "OS Login"
        path = shutil.which("gcloud")
        if path is None:
            return self._finding("gcloud", "fail", f"gcloud is not installed; {use} needs it", f"see {GCLOUD_PAGE}")
        account = _active_account(path)
        if account is None:
            return self._finding("gcloud", "fail", "gcloud does not start", f"see {GCLOUD_PAGE}")
        if not account:
            return self._finding("gcloud", "fail", f"gcloud has no active login; {use} needs one", "gcloud auth login")
        return self._finding("gcloud", "ok", f"{path}, as {account}")

    def _library(self) -> Finding:
        try:
            importlib.import_module("google.cloud.compute_v1")
        except Exception as error:  # noqa: BLE001 - a broken installation breaks in any way it likes
            why = f"Google's library cannot be imported: {error}"
            return self._finding("library", "fail", why, to_repair("google-cloud-compute"))
        return self._finding("library", "ok", "Google's library can be imported")

    # ------------------------------------------------------------------------------------------------------ the cloud
    def _account(self, cloud: Cloud) -> Iterator[Finding]:
        """The first question; whatever is wrong with credentials, project or API shows here."""
        cloud.machine(self.target.zones[0], self.target.instance)
        if on_loopback(self.target.api_endpoint):
            yield self._finding("credentials", "ok", "not needed: the target is an emulator on this computer")
        else:
            yield self._finding("credentials", "ok", "Application Default Credentials")
        yield self._finding("project", "ok", f"{self.target.project} exists, and its Compute Engine API answers")
        ahead = cloud.ahead_s() or 0.0
        if abs(ahead) > WRONG_S:
            why = f"this computer's clock differs by {-ahead:+.0f} s from the cloud's"
            yield self._finding("clock", "fail", why, clock_command())

    def _machine(self, cloud: Cloud) -> Iterator[Finding]:
        target = self.target
        machines = [
            m for zone in dict.fromkeys(target.zones) if (m := cloud.machine(zone, target.instance)) is not None
        ]
        if not machines:
            yield self._none_there()
            return
        if len(machines) > 1:
            where = ", ".join(machine.zone for machine in machines)
            why = f"{target.instance} exists more than once: {where}; fcctl uses the first"
            yield self._finding("machine", "warn", why, "fcctl hosts audit")
        self.machine = machine = machines[0]
        if len(machines) == 1:
            yield self._finding("machine", "ok", f"{machine.name} in {machine.zone} is {machine.status}")
        yield from self._permissions(cloud, machine)
        yield from self._host_keys(machine)

    def _none_there(self) -> Finding:
        target = self.target
        where = f"{target.instance} does not exist in {', '.join(target.zones)}"
        if target.create:
            return self._finding("machine", "ok", f"{where}; the first run creates it")
        return self._finding("machine", "fail", f"{where}, and `create` is false", "check `instance` and `zones`")

    def _permissions(self, cloud: Cloud, machine: Machine) -> Iterator[Finding]:
        needed = [*NEEDED, *(["compute.instances.delete"] if self.target.release == "delete" else [])]
        missing = cloud.missing_permissions(machine, needed)
        if missing:
            why = f"missing on {machine.name}: {', '.join(missing)}"
            yield self._finding("permissions", "fail", why, refusals.permission_hint(missing[0], machine.project))
        else:
            yield self._finding("permissions", "ok", f"enough to start and stop {machine.name}")

    def _host_keys(self, machine: Machine) -> Iterator[Finding]:
        known = self._book.known(machine.project, machine.name)
        if known is not None and known.instance_id == machine.id and known.host_keys:
            yield self._finding("host keys", "ok", f"stored: {', '.join(key.split()[0] for key in known.host_keys)}")
            return
        if on_loopback(self.target.api_endpoint):
            yield self._finding("host keys", "ok", "an emulated machine publishes them; the first start stores them")
            return
        published = (
            machine.metadata.get(GUEST_ATTRIBUTES_ITEM, "").upper() == "TRUE" and MANAGED_LABEL in machine.labels
        )
        if published:
            yield self._finding("host keys", "ok", "the machine publishes them; the first start stores them")
            return
        fix = f"gcloud compute ssh {machine.name} --zone={machine.zone} --project={machine.project}"
        why = "fcctl did not create the machine: if it publishes no host keys, fcctl uses those that gcloud stored"
        yield self._finding("host keys", "warn", why, fix)

    # --------------------------------------------------------------------------------------------------------- quotas
    def _quotas(self, cloud: Cloud) -> Iterator[Finding]:
        """A limit of 0 hides behind "no stock", so it is said here, where a machine would have to be made."""
        regions = list(dict.fromkeys(map(region_of, self.target.zones)))
        quotas = {region: cloud.quotas(region) for region in regions}
        for accelerator, count in refusals.gpus(self.target).items():
            wanted = [
                (refusals.metric(accelerator, spot=way == "spot"), region)
                for way in self.target.ways
                for region in regions
            ]
            limits = {one: _limit(quotas[one[1]], *one) for one in wanted}
            enough = any(limit is not None and limit.limit >= count for limit in limits.values())
            for (metric, region), limit in limits.items():
                yield self._quota(metric, region, limit, count, elsewhere=enough)
            whole = _limit(quotas[regions[0]], refusals.OF_THE_PROJECT, None)
            yield self._quota(refusals.OF_THE_PROJECT, None, whole, count, elsewhere=False)

    def _quota(self, metric: str, region: str | None, quota: Quota | None, count: int, *, elsewhere: bool) -> Finding:
        """``elsewhere``: another of the target's regions or kinds of machine has enough."""
        name = f"quota {metric}" + (f" {region}" if region else "")
        if quota is None:
            return self._finding(name, "warn", "the cloud does not show this quota", self._ask(metric, region))
        if quota.limit < count:
            status: Status = "warn" if elsewhere else "fail"
            few = f"{quota.limit:g}, and the machine needs {count}"
            return self._finding(name, status, f"the limit is {few}", self._ask(metric, region))
        used = f"{quota.usage:g} of {quota.limit:g} in use"
        is_on = self.machine is not None and self.machine.power is not Power.STOPPED  # and so among what is in use
        if quota.usage + count > quota.limit and not is_on:
            return self._finding(name, "warn", f"{used}; the machine needs {count} more", self._ask(metric, region))
        return self._finding(name, "ok", used)

    def _ask(self, metric: str, region: str | None) -> str:
        return refusals.quota_hint(metric, self.target.project, region)

    # -------------------------------------------------------------------------------------------------------- network
    def _firewall(self, cloud: Cloud) -> Iterator[Finding]:
        if not self.target.iap:
            return
        network = self.target.network or "default"
        allowed = cloud.firewall_allows_iap(network)
        if allowed:
            yield self._finding("firewall", "ok", f"network {network} allows Identity-Aware Proxy on port 22")
        elif allowed is None:
            why = f"these credentials may not read the rules of network {network}: the tunnel is not checked"
            fix = refusals.permission_hint("compute.firewalls.list", self.target.project)
            yield self._finding("firewall", "warn", why, fix)
        else:
            fix = (
                f"gcloud compute firewall-rules create allow-ssh-from-iap --project={self.target.project}"
                f" --network={network} --direction=INGRESS --allow=tcp:22 --source-ranges=35.235.240.0/20"
            )
            why = f"network {network} blocks Identity-Aware Proxy (35.235.240.0/20) on port 22"
            yield self._finding("firewall", "fail", why, fix)


def _limit(quotas: list[Quota], metric: str, region: str | None) -> Quota | None:
    return next((quota for quota in quotas if (quota.metric, quota.region) == (metric, region)), None)


def _active_account(gcloud: str) -> str | None:
    """Who gcloud is logged in as; empty if nobody, None if it does not start."""
    argv = [gcloud, "auth", "list", "--filter=status:ACTIVE", "--format=value(account)", "--quiet"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=_GCLOUD_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
