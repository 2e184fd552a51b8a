"""The first wake of a stock GPU machine: it installs its driver, reboots, upgrades itself; counters are closed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest

from orchestrator.emulator import guest
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency
from tests.support.stock_image import TYPICAL, FirstBoot, make
from tests.support.virtual_cloud import CloudWorkspace, Meter, billed, emulated


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated() as made:
        # Longer than a busy machine may take from one look to the next.
        made.world.scenario.latency = Latency(boot=15, login=30)
        made.hypervisor.make_disk = partial(make, first_boot=TYPICAL)
        yield made


def test_a_first_boot_is_waited_for_and_the_machine_made_fit(workspace: CloudWorkspace, cloud: Emulator) -> None:
    with Meter(cloud) as meter:
        done = workspace.type("run", "noop", "--on", "l4", "--yes", "-v", check=0)
    waits = [
        "waiting for its guest agent to publish its host keys",
        "waiting for the installation of its NVIDIA driver, ",
        "no answer; it probably restarts after the installation of its driver",
        "tmux and rsync: unattended upgrades hold the apt lock; waiting",
    ]
    places = [done.err.find(text) for text in waits]
    assert -1 not in places, done.err
    assert places == sorted(places)
    for line in (
        "tmux and rsync: not installed: tmux rsync; installed tmux and rsync",
        "GPU performance counters for all users: only administrators may read them; set, and the driver was reloaded",
        "GPU persistence mode: off; switched on",
    ):
        assert f"l4: {line}" in done.err
    assert billed(cloud) == []
    bound = re.search(r"may cost \$[\d.]+ at most: the cloud stops the machine after (\d+) minutes", done.err)
    assert bound is not None
    assert 30 < meter.seconds < int(bound[1]) * 60, "billed within the plan"
    assert "GPU counters" not in workspace.type("hosts", "up", "l4", "--yes", check=0).err, "once"


def test_why_a_machine_does_not_boot_is_said(
    workspace: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sshd() -> str:
        raise OSError("there is no sshd")

    monkeypatch.setattr(guest, "sshd_program", no_sshd)
    workspace.target("dead", instance="dead", wake_timeout_s=60)
    done = workspace.type("hosts", "up", "dead", "--yes", check=6)
    assert "dead runs, but executed no command within 60 s" in done.err
    assert "its console ends with: the system does not boot: there is no sshd" in done.err
    assert billed(cloud) == []


@pytest.mark.full
def test_a_driver_that_never_comes_is_waited_for_with_a_bound(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.hypervisor.make_disk = partial(make, first_boot=FirstBoot(driver_looks=10_000))
    with Meter(cloud) as meter:
        done = workspace.type("run", "noop", "--on", "l4", "--yes", check=0)  # it needs no GPU
    assert re.search(r"l4: nvidia-smi still fails after 3\d\d s; see why: fcctl hosts ssh l4 -- nvidia-smi", done.err)
    assert 300 < meter.seconds < 500
    assert billed(cloud) == []


def test_a_machine_of_others_is_left_as_it_is(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.hypervisor.make_disk = make
    workspace.target("theirs", instance="theirs", owned=False)
    done = workspace.type("run", "noop", "--on", "theirs", "--yes", check=0)
    assert "GPU counters" not in done.err
