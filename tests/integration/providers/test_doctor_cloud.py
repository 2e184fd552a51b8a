"""What doctor says of a machine in a cloud: each thing that is wrong, with one fix; and nothing is woken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.installation import Finding
from orchestrator.machines.cache import FileMachineCache
from orchestrator.machines.targets import GcpTarget, SandboxTarget
from orchestrator.providers.gcp import refusals
from orchestrator.providers.gcp.cloud import GcpCloud
from orchestrator.providers.gcp.doctor import CloudCheckup
from orchestrator.providers.registry import ProviderClouds
from orchestrator.workspace.doctor import check_sandbox
from tests.integration.providers.conftest import ZONE, World, rid
from tests.support.command import run_fcctl
from tests.support.scripts import script
from tests.support.sshd import generate_key

Worlds = Callable[..., World]


def findings(here: World, **changes: Any) -> dict[str, Finding]:
    target = here.target.model_copy(update=changes)
    found = list(CloudCheckup(target, ProviderClouds(here.clock), FileMachineCache()).findings())
    assert all((one.fix is None) == (one.status == "ok") for one in found)
    assert all("\n" not in str(one.fix) for one in found)
    return {one.id: one for one in found}


def states(found: dict[str, Finding]) -> dict[str, str]:
    return {name: one.status for name, one in found.items()}


def test_all_is_well_and_nothing_was_started(world: Worlds) -> None:
    here = world()
    assert states(findings(here)) == {
        "login key": "ok", "library": "ok", "credentials": "ok", "project": "ok", "machine": "ok",
        "quota NVIDIA_L4_GPUS us-central1": "ok", "quota GPUS_ALL_REGIONS": "ok",
    }  # fmt: skip
    assert "the first run creates it" in findings(here)["machine"].message
    assert not here.emulator.world.machines
    here.stopped()
    before = len(here.emulator.world.operations)
    found = findings(here)
    assert found["machine"].message == f"vm in {ZONE} is TERMINATED"
    assert states(found)["permissions"] == "ok"
    assert len(here.emulator.world.operations) == before


def test_a_computer_whose_clock_is_wrong(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GcpCloud, "ahead_s", lambda _: -3600.0)
    found = findings(world())["clock"]
    assert (found.status, found.message) == ("fail", "this computer's clock differs by +3600 s from the cloud's")
    assert str(found.fix).startswith("sudo ")


def test_permissions_that_are_missing_on_the_machine(world: Worlds) -> None:
    here = world()
    here.stopped()
    here.emulator.scenario.denied = ("instances.setScheduling", "instances.start", "instances.delete")
    found = findings(here)["permissions"]
    assert found.status == "fail"
    assert "compute.instances.start, compute.instances.setScheduling" in found.message
    assert "delete" not in found.message
    assert "--role=roles/compute.instanceAdmin.v1" in str(found.fix)
    assert "compute.instances.delete" in findings(here, release="delete")["permissions"].message


def test_a_permission_to_look(world: Worlds) -> None:
    here = world(denied=("instances.get",))
    found = findings(here)
    assert list(found)[-1] == "cloud"
    assert found["cloud"].status == "fail"
    assert "compute.instances.get" in found["cloud"].message


def test_another_project(world: Worlds) -> None:
    here = world(projects=("other-project",))
    found = findings(here)["cloud"]
    assert "the project 'proj-one'" in found.message
    assert "gcloud projects list" in str(found.fix)


def test_no_credentials(private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    target = GcpTarget(name="l4", project="proj-one", instance="vm", zones=[ZONE])
    found = list(CloudCheckup(target, ProviderClouds(SystemClock()), FileMachineCache()).findings())
    assert (found[-1].id, found[-1].status) == ("credentials", "fail")
    assert found[-1].fix == "gcloud auth application-default login"


# --------------------------------------------------------------------------------------------------------------- quotas
ASK = "request a higher quota {}: https://console.cloud.google.com/iam-admin/quotas?project=proj-one"
L4, SPOT, ALL = "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS", "GPUS_ALL_REGIONS"


def test_a_limit_of_nothing_is_said_plainly(world: Worlds) -> None:
    here = world(stock={ZONE: 0}, quotas={"us-central1": {L4: 0}, "global": {ALL: 0}})
    found = findings(here)
    assert found[f"quota {L4} us-central1"] == Finding(
        "target l4", f"quota {L4} us-central1", "fail", "the limit is 0, and the machine needs 1",
        ASK.format(f"{L4} in us-central1"),
    )  # fmt: skip
    assert (found[f"quota {ALL}"].status, found[f"quota {ALL}"].fix) == ("fail", ASK.format(ALL))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"zones": [ZONE, "us-west1-c"]}, {f"{L4} us-central1": "warn", f"{L4} us-west1": "ok", ALL: "ok"}),
        ({"provisioning": "spot"}, {f"{SPOT} us-central1": "ok", ALL: "ok"}),
        ({"provisioning": "on_demand_then_spot"},
         {f"{L4} us-central1": "warn", f"{SPOT} us-central1": "ok", ALL: "ok"}),
        ({"machine_type": "g2-standard-96", "zones": ["us-west1-c"]}, {f"{L4} us-west1": "ok", ALL: "ok"}),
        ({"machine_type": "g2-standard-96", "zones": ["us-east1-b"]}, {f"{L4} us-east1": "fail", ALL: "ok"}),
        ({"machine_type": "n1-standard-4", "accelerators": {"nvidia-tesla-t4": 1}},
         {"NVIDIA_T4_GPUS us-central1": "warn", ALL: "ok"}),
        ({"machine_type": "e2-medium"}, {}),
    ],
)  # fmt: skip
def test_which_limits_count(world: Worlds, changes: dict[str, Any], wanted: dict[str, str]) -> None:
    here = world(quotas={"us-central1": {L4: 0}, "us-east1": {L4: 1}})
    found = findings(here, **changes)
    quotas = {name.removeprefix("quota "): one.status for name, one in found.items() if name.startswith("quota ")}
    assert quotas == wanted


def test_a_limit_that_is_used_up_by_others(world: Worlds) -> None:
    here = world(quotas={"us-central1": {L4: 1}})
    here.made("theirs")
    assert findings(here)[f"quota {L4} us-central1"].message == "1 of 1 in use; the machine needs 1 more"
    here.ok(here.cloud.stop(here.get("theirs"), rid()))
    here.made()
    assert findings(here)[f"quota {L4} us-central1"].status == "ok"


@pytest.mark.parametrize(
    ("accelerator", "spot", "metric"),
    [
        ("nvidia-l4", False, "NVIDIA_L4_GPUS"), ("nvidia-l4", True, "PREEMPTIBLE_NVIDIA_L4_GPUS"),
        ("nvidia-tesla-t4", False, "NVIDIA_T4_GPUS"), ("nvidia-a100-80gb", False, "NVIDIA_A100_80GB_GPUS"),
        ("nvidia-tesla-v100", True, "PREEMPTIBLE_NVIDIA_V100_GPUS"),
    ],
)  # fmt: skip
def test_the_names_of_limits(accelerator: str, spot: bool, metric: str) -> None:
    assert refusals.metric(accelerator, spot=spot) == metric


# ----------------------------------------------------------------------------------------------------------- the way in
@pytest.mark.full
def test_the_tunnel_s_firewall(world: Worlds) -> None:
    here = world()
    assert "firewall" not in findings(here)
    assert findings(here, iap=True)["firewall"].status == "ok"
    here.emulator.scenario.iap_firewall = False
    found = findings(here, iap=True)["firewall"]
    assert found.status == "fail"
    assert str(found.fix).startswith("gcloud compute firewall-rules create")
    assert "0.0.0.0/0" not in str(found.fix)
    here.emulator.scenario.denied = ("firewalls.list",)
    found = findings(here, iap=True)["firewall"]
    assert (found.status, "roles/compute.viewer" in str(found.fix)) == ("warn", True)


@pytest.mark.parametrize(
    ("says", "status", "said"),
    [
        (None, "fail", "gcloud is not installed"),
        ("exit 1", "fail", "does not start"),
        ("true", "fail", "no active login"),
        ("echo ann@example.com", "ok", "as ann@example.com"),
    ],
)
def test_gcloud_for_the_tunnel(
    world: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, status: str, said: str
) -> None:
    here = world()
    assert "gcloud" not in findings(here)
    programs = tmp_path / "bin"
    programs.mkdir()
    if says is not None:
        script(programs / "gcloud", says)
    with monkeypatch.context() as path:
        path.setenv("PATH", str(programs))
        found = findings(here, iap=True)["gcloud"]
        assert states(findings(here, login="os_login"))["gcloud"] == status
    assert (found.status, said in found.message) == (status, True)


@pytest.mark.parametrize(("mode", "status"), [(0o600, "ok"), (0o400, "ok"), (0o644, "fail"), (0o640, "fail")])
def test_the_key_s_mode(world: Worlds, tmp_path: Path, mode: int, status: str) -> None:
    path = generate_key(tmp_path / "k")
    path.chmod(mode)
    found = findings(world(), identity_file=str(path))["login key"]
    assert found.status == status
    assert found.fix == (None if status == "ok" else f"chmod 600 {path}")


def test_a_key_that_is_not_there(world: Worlds, tmp_path: Path) -> None:
    found = findings(world(), identity_file=str(tmp_path / "none"))["login key"]
    assert (found.status, found.fix) == ("fail", f"ssh-keygen -t ed25519 -f {tmp_path / 'none'}")


# ---------------------------------------------------------------------------------------------------------- the machine
def test_a_machine_that_nothing_may_make(world: Worlds) -> None:
    found = findings(world(), create=False)["machine"]
    assert found.status == "fail"
    assert "`create` is false" in found.message


def test_two_machines_of_one_name(world: Worlds) -> None:
    here = world()
    here.made()
    here.made(zone="us-central1-b")
    found = findings(here)["machine"]
    assert (found.status, found.fix) == ("warn", "fcctl hosts audit")


def test_what_the_sandbox_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = check_sandbox(SandboxTarget(name="sandbox"))
    assert found.status == "ok"


@pytest.mark.full
def test_the_command_looks_and_logs_in_where_it_can(world: Worlds, private_home: Path, tmp_path: Path) -> None:
    here = world()
    here.stopped()
    (tmp_path / "fcctl.toml").write_text(
        f'[targets.l4]\nkind = "gcp"\nproject = "proj-one"\ninstance = "vm"\nzones = ["{ZONE}"]\n'
        f'api_endpoint = "{here.emulator.url}"\n'
    )

    def doctor() -> tuple[int, dict[str, Any]]:
        done = run_fcctl("--json", "doctor", "--on", "l4", cwd=tmp_path)
        return done.code, {row["id"]: row for row in done.json["findings"] if row["section"] == "target l4"}

    code, rows = doctor()
    assert (code, rows["reachable"]["message"]) == (0, "vm is off: login not checked")
    here.ok(here.cloud.start(here.get(), rid()))
    assert doctor()[1]["reachable"]["fix"] == "fcctl hosts up l4"
    FileMachineCache().remember(here.endpoint(here.get()))
    code, rows = doctor()
    assert code == 0, rows
    assert rows["reachable"]["status"] == "ok"
    assert "Python" in rows["reachable"]["message"]
    assert rows["host keys"]["message"].startswith("stored: ssh-ed25519")
