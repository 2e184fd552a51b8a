"""fcctl in this very process, before an emulated cloud whose time moves when fcctl waits.

Google's library is imported once for all scenarios of a test session, and a minute of back-off takes a few
milliseconds: the clock that ``app`` hands to the workflows sleeps by moving the emulator's time.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from orchestrator.cli.main import main
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.world import Machine
from tests.support import forked
from tests.support.forked import REAL_S
from tests.support.patience import patient
from tests.support.prices import write_prices
from tests.support.workspace import Workspace

PROJECT, INSTANCE = "my-project", "cudadent42-l4-dev"
ZONES = ("us-west1-c", "us-west1-a", "us-central1-a")


class VirtualClock:
    """The emulator's time for fcctl. ``ahead_s``: how much this computer's clock is ahead of the cloud's."""

    def __init__(self, emulator: Emulator, ahead_s: float = 0.0) -> None:
        self._emulator = emulator
        self._ahead_s = ahead_s

    def now(self) -> float:
        return self._emulator.clock.now() + self._ahead_s

    def monotonic(self) -> float:
        return self._emulator.clock.now()

    def elapsed(self) -> float:
        return self._emulator.clock.now()

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, REAL_S))
        self._emulator.advance(max(0.0, seconds - REAL_S))


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CloudWorkspace(Workspace):
    """A workspace whose target ``l4`` is a machine of ``emulator``'s cloud; :meth:`type` runs fcctl in it."""

    imports = forked.CLOUD

    def __init__(self, folder: Path, home: Path, emulator: Emulator, ahead_s: float = 0.0, **target: Any) -> None:
        super().__init__(folder, home)
        write_prices(home)
        self.emulator = emulator
        self.ahead_s = ahead_s
        self.target("l4", **target)
        self.job("noop", "steps:\n  - {id: one, run: echo hi, timeout: 2m}\nbudget: {minutes: 2}\n")

    def target(self, name: str, **changes: Any) -> None:
        """Add ``[targets.NAME]``, a machine of the cloud."""
        values = {
            "kind": "gcp", "project": PROJECT, "instance": INSTANCE, "zones": list(ZONES),
            "api_endpoint": self.emulator.url, "reconnect_s": 5.0, **changes,
        }  # fmt: skip
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        with (self.root / "fcctl.toml").open("a") as file:
            file.write("\n".join(["", f"[targets.{name}]", *lines, ""]))

    def type(self, *args: str, check: int | None = None) -> Done:
        """``fcctl ARGS``, in this process and in the cloud's time."""
        out, err = io.StringIO(), io.StringIO()
        clock = VirtualClock(self.emulator, self.ahead_s)
        with (
            mock.patch("orchestrator.app.SystemClock", return_value=clock),
            patient(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(["-C", str(self.root), *args])
        done = Done(code, out.getvalue(), err.getvalue())
        if check is not None and code != check:
            raise AssertionError(f"fcctl {' '.join(args)}: exit code {code}, not {check}\n{done.said}")
        return done


# ------------------------------------------------------------------------------------------------ behind the scenes
def machines(emulator: Emulator) -> dict[str, Machine]:
    """Every machine of the emulator by its path."""
    with emulator.world.lock:
        return dict(emulator.world.machines)


def audited(workspace: CloudWorkspace, *args: str, check: int = 0) -> dict[str, Any]:
    """The document of ``fcctl hosts audit ARGS``."""
    found: dict[str, Any] = workspace.type("hosts", "audit", "--json", *args, check=check).json
    return found


def billed(emulator: Emulator) -> list[str]:
    """``zone/name status`` of each machine that costs its hourly price now."""
    off = ("TERMINATED", "SUSPENDED")
    return [f"{m.zone}/{p.rsplit('/', 1)[-1]} {m.status}" for p, m in machines(emulator).items() if m.status not in off]


class Meter:
    """The true bill: what the cloud bills machines for during a ``with``."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._since = self._until = 0.0

    def __enter__(self) -> Meter:
        self._since = self._emulator.clock.now()
        return self

    def __exit__(self, *_: object) -> None:
        self._until = self._emulator.clock.now()

    @property
    def seconds(self) -> float:
        """Without the cloud's minimum of a minute a start."""
        billed = self._emulator.world.billed
        spans = [(max(one.since, self._since), min(one.until or self._until, self._until)) for one in billed]
        return sum(max(0.0, until - since) for since, until in spans)

    def usd(self, rate: float) -> float:
        """At ``rate`` dollars an hour."""
        return self.seconds / 3600 * rate


def napping(
    folder: Path, home: Path, emulator: Emulator, caps: str, name: str = "small", **target: Any
) -> CloudWorkspace:
    """A workspace of the project ``name`` with the job ``nap`` of five minutes. Args: caps: its ``[budget]``."""
    found = CloudWorkspace(folder, home, emulator, **target)
    found.job("nap", "steps:\n  - {id: nap, run: sleep 300, timeout: 10m}\n")
    text = (folder / "fcctl.toml").read_text().replace('"small"', f'"{name}"')
    (folder / "fcctl.toml").write_text(text + caps)
    return found


def money(workspace: CloudWorkspace) -> tuple[float, float]:
    """Dollars that machines cost so far, and that are reserved."""
    found = workspace.type("--json", "cost", "budget", check=0).json
    project = found["caps"][4]
    return project["spent_usd"] - project["standing_usd"], found["reserved_usd"]


@contextlib.contextmanager
def emulated(**given: Any) -> Iterator[Emulator]:
    """An emulator whose calls of ``wait`` answer at once: time is moved by whoever waits, not by waiting."""
    from orchestrator.emulator.scenario import Scenario

    pytest.importorskip("google.cloud.compute_v1", reason="fcctl asks a cloud through Google's library")
    scenario = Scenario(wait_limit_s=0.02, **given)
    with Emulator(scenario=scenario) as emulator:
        yield emulator


# ------------------------------------------------------------------------------------------------ somebody else's hand
def hands(emulator: Emulator, client: str = "InstancesClient") -> Any:
    """Google's client, used without fcctl."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    return getattr(compute_v1, client)(
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": emulator.url},
    )


def machine_by_hand(
    emulator: Emulator, state: str, zone: str = ZONES[0], name: str = INSTANCE, labels: dict[str, str] | None = None,
    max_run_s: int | None = None,
) -> None:  # fmt: skip
    """The target's machine as somebody else made it, and left it: stopped, suspended, running, stopping or absent."""
    from google.cloud import compute_v1 as compute

    if state == "absent":
        return
    limit = {"max_run_duration": {"seconds": max_run_s}, "instance_termination_action": "STOP"} if max_run_s else {}
    image = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
    instance = compute.Instance({
        "name": name, "machine_type": f"zones/{zone}/machineTypes/g2-standard-4",
        "labels": {"fcctl": "yes"} if labels is None else labels,
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": {"source_image": image}}],
        "network_interfaces": [{"access_configs": [{"name": "External NAT"}]}],
        "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": False, **limit},
    })  # fmt: skip
    hands(emulator).insert_unary(project=PROJECT, zone=zone, instance_resource=instance)
    emulator.advance(2)
    if state in ("stopped", "stopping"):
        if state == "stopping":
            emulator.scenario.latency = emulator.scenario.latency.model_copy(update={"stop": 180.0})
        hands(emulator).stop_unary(project=PROJECT, zone=zone, instance=INSTANCE)
        emulator.advance(2)
    elif state == "suspended":
        hands(emulator).suspend_unary(project=PROJECT, zone=zone, instance=INSTANCE)
        emulator.advance(2)


def stop_by_hand(emulator: Emulator, zone: str = ZONES[0]) -> None:
    hands(emulator).stop_unary(project=PROJECT, zone=zone, instance=INSTANCE)
    emulator.advance(2)


def start_by_hand(emulator: Emulator, zone: str = ZONES[0]) -> None:
    hands(emulator).start_unary(project=PROJECT, zone=zone, instance=INSTANCE)
    emulator.advance(2)


def delete_by_hand(emulator: Emulator, zone: str = ZONES[0]) -> None:
    hands(emulator).delete_unary(project=PROJECT, zone=zone, instance=INSTANCE)
    emulator.advance(2)
