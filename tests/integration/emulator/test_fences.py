"""What stops a machine without any client: the cloud's deadline, the guest's own shutdown, preemption, broken hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.emulator import clock
from orchestrator.emulator.clock import EmulatedClock, parse_timestamp
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.power_command import Unknown, request_of
from orchestrator.emulator.scenario import Latency, Scenario
from tests.integration.emulator.conftest import scheduling
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")
from google.api_core import exceptions

Cloud = tuple[Emulator, Any]


def deadline(gce: Any) -> float:
    return parse_timestamp(gce.get().resource_status.scheduling.termination_timestamp)


def test_the_deadline_counts_from_the_entry_into_running_and_stops_the_machine(emulator: Emulator, gce: Any) -> None:
    vm = gce.create(scheduling=scheduling(3600))
    assert vm.scheduling.max_run_duration.seconds == 3600
    assert deadline(gce) == pytest.approx(parse_timestamp(vm.last_start_timestamp) + 3600, abs=0.01)
    emulator.advance(3400)  # far from the deadline: this time passes, too, as fast as it does for everybody
    assert gce.status() == "RUNNING"
    emulator.advance(201)
    assert gce.status() == "TERMINATED"
    assert gce.history() == ["insert", "deferredStop"]
    assert gce.get().resource_status.scheduling.termination_timestamp == ""


def test_the_deadline_is_enforced_late(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(latency=Latency(expiry_lateness=600)))
    gce.create(scheduling=scheduling(60))
    emulator.advance(360)
    assert gce.status() == "RUNNING"
    emulator.advance(301)
    assert gce.status() == "TERMINATED"


@pytest.mark.parametrize(
    "wrong",
    [
        scheduling(29),
        scheduling(120 * 86400 + 1),
        {"max_run_duration": {"seconds": 60}, "on_host_maintenance": "TERMINATE"},
        {"on_host_maintenance": "MIGRATE"},
        scheduling(None, provisioning_model="SPOT") | {"automatic_restart": True},
        scheduling(None, instance_termination_action="STOP"),
        scheduling(None, instance_termination_action="STOP", termination_time="tomorrow"),
    ],
    ids=["short", "long", "no action", "migrates", "spot restarts", "action alone", "no time"],
)
def test_scheduling_that_is_refused(gce: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(exceptions.BadRequest) as error:
        gce.insert(scheduling=wrong)
    assert error.value.errors[0]["reason"] == "invalid"
    assert list(gce.instances.list(project="proj", zone="us-central1-a")) == []


def test_shutdown_inside_stops_the_instance(gce: Any) -> None:
    gce.create()
    gce.ssh("sudo -n shutdown -h now")
    wait_for(lambda: gce.status() == "TERMINATED")
    assert gce.history() == ["insert", "guestTerminate"]


def test_a_shutdown_timer_of_the_guest(emulator: Emulator, gce: Any) -> None:
    gce.create()
    assert gce.ssh("sudo shutdown -P +30; shutdown --show").stdout.startswith("Shutdown scheduled in 1")
    assert gce.ssh("shutdown -c; shutdown --show").stdout == "No scheduled shutdown.\n"
    unit = "fcctl-lease-1"
    armed = f"systemd-run --unit {unit} --on-active 600s --timer-property=AccuracySec=1s /bin/systemctl poweroff"
    assert gce.ssh(f"{armed} && {armed.replace('-1', '-2')} && systemctl stop {unit}.timer").returncode == 0
    emulator.advance(400)
    assert gce.status() == "RUNNING"
    emulator.advance(201)
    assert gce.status() == "TERMINATED"


def test_a_reboot_keeps_the_machine_running_and_ends_its_processes(emulator: Emulator, gce: Any) -> None:
    gce.create()
    first = gce.ssh("echo $FCCTL_EMULATOR_BOOT_ID").stdout
    guest = emulator.hypervisor.running[emulator.machine("vm").path]
    gce.ssh("sudo reboot")
    wait_for(lambda: emulator.hypervisor.running.get(emulator.machine("vm").path) not in (guest, None))
    second = gce.ssh("echo $FCCTL_EMULATOR_BOOT_ID").stdout
    assert first.strip()
    assert second.strip()
    assert first != second
    assert gce.history() == ["insert"]


def test_preemption_gives_notice_and_stops(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(latency=Latency(preemption_notice=600)))
    gce.create(scheduling=scheduling(None, provisioning_model="SPOT", instance_termination_action="STOP"))
    emulator.preempt("vm")
    emulator.advance(300)
    assert gce.status() == "STOPPING"
    assert gce.ssh("true").returncode == 0
    emulator.advance(301)
    assert gce.status() == "TERMINATED"
    assert gce.history() == ["insert", "preempted"]


def test_a_host_error_restarts_a_machine_that_asks_for_it(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(clock=EmulatedClock(speed=0))
    gce.insert(scheduling=scheduling(None, automatic_restart=True))
    emulator.advance(1)
    emulator.host_error("vm")
    assert gce.status() == "REPAIRING"
    emulator.advance(1)
    assert gce.status() == "RUNNING"
    assert gce.ssh("true").returncode == 0


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("shutdown -h now", {"do": "off", "after_s": 0.0, "unit": "shutdown"}),
        ("shutdown -P +5 message", {"do": "off", "after_s": 300.0, "unit": "shutdown"}),
        ("shutdown", {"do": "off", "after_s": 60.0, "unit": "shutdown"}),
        ("shutdown -r 2", {"do": "reboot", "after_s": 120.0, "unit": "shutdown"}),
        ("shutdown -c", {"do": "cancel", "unit": "shutdown"}),
        ("poweroff -f", {"do": "off", "after_s": 0.0, "unit": "shutdown"}),
        ("systemctl --no-block reboot", {"do": "reboot", "after_s": 0.0, "unit": "shutdown"}),
        ("systemctl stop x.timer", {"do": "cancel", "unit": "x"}),
        ("systemd-run --on-active=2m -u x shutdown now", {"do": "off", "after_s": 120.0, "unit": "x"}),
    ],
)
def test_what_the_power_commands_ask_for(argv: str, expected: dict[str, object]) -> None:
    name, *arguments = argv.split()
    assert request_of(name, arguments, 0.0) == expected


@pytest.mark.parametrize("argv", ["shutdown -k now", "shutdown soon", "systemctl restart x", "systemd-run echo hi"])
def test_power_commands_refuse_what_is_not_theirs(argv: str) -> None:
    name, *arguments = argv.split()
    with pytest.raises(Unknown):
        request_of(name, arguments, 0.0)


def test_a_limit_that_passed_while_the_computer_slept_stops_the_machine(
    emulator: Emulator, gce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gce.create()  # with a limit of an hour
    before, awake = emulator.clock.now(), clock.elapsed
    monkeypatch.setattr(clock, "elapsed", lambda: awake() + 2 * 3600)  # two hours asleep
    assert emulator.clock.now() >= before + 7200
    wait_for(lambda: gce.status() == "TERMINATED")
    assert gce.history()[-1] == "deferredStop"
