"""Lists, waits, history, quotas, firewalls: what the cloud says, however it says it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import CloudError, ConfigError, NotFoundError
from orchestrator.emulator.scenario import Latency
from orchestrator.emulator.world import STEPS
from orchestrator.machines.cloud import Hardware, Power, Quota, Remedy
from orchestrator.machines.provision.endpoint import HOST_KEYS_PATH, parse_host_keys
from orchestrator.machines.provision.ready import with_disk_types
from orchestrator.providers.gcp import messages
from orchestrator.providers.gcp.cloud import GcpCloud
from tests.integration.providers.conftest import PROJECT, ZONE, World, rid

Worlds = Callable[..., World]
OTHER = "us-west1-c"


# ------------------------------------------------------------------------------------------------------------- machines
def test_a_machine_as_the_cloud_has_it(world: Worlds) -> None:
    here = world()
    assert here.cloud.machine(ZONE, "vm") is None
    found = here.made(way="spot", max_run_s=600, accelerators={}, disk_gb=120)
    assert (found.project, found.zone, found.name, found.power) == (PROJECT, ZONE, "vm", Power.RUNNING)
    assert (found.machine_type, found.accelerators) == ("g2-standard-4", {"nvidia-l4": 1})
    assert (found.spot, found.max_run_s, found.termination_action) == (True, 600, "STOP")
    assert found.started is not None
    assert found.deadline == pytest.approx(found.started + 600)
    assert [(disk.boot, disk.gb, disk.auto_delete) for disk in found.disks] == [(True, 120, True)]
    assert (found.external_ip, found.internal_ip) == ("127.0.0.1", "10.128.0.2")
    assert found.labels == {"fcctl": "x", "fcctl-workspace": "w"}
    raw = here.emulator.machine("vm").resource
    assert raw["serviceAccounts"] == []
    assert (raw["scheduling"]["onHostMaintenance"], raw["scheduling"]["automaticRestart"]) == ("TERMINATE", False)
    assert raw["scheduling"]["provisioningModel"] == "SPOT"


@pytest.mark.parametrize(("message", "is_absent"), [
    ("Instance vm not found.", True), (f"The resource 'projects/{PROJECT}/zones/{ZONE}' was not found", False),
])  # fmt: skip
def test_whatever_words_say_that_a_machine_is_not_there(world: Worlds, message: str, is_absent: bool) -> None:
    here = world()
    here.emulator.faults.add(action="instances.get", do={"http": {"status": 404, "message": message}})
    if is_absent:
        assert here.cloud.machine(ZONE, "vm") is None
    else:
        with pytest.raises(ConfigError):
            here.cloud.machine(ZONE, "vm")


def test_what_a_machine_costs_by_is_read_and_what_is_missing_is_borne(world: Worlds) -> None:
    here = world()
    machine = here.stopped(disk_type="pd-ssd", disk_gb=120)
    assert (machine.external_ip, machine.external) == (None, True), "it gets an address when it starts"
    (disk,) = here.cloud.disks(machine)
    assert (disk.name, disk.type, disk.gb) == ("vm", "pd-ssd", 120)
    typed = with_disk_types(here.cloud, machine).hardware
    assert typed.disks == (("pd-ssd", 120),)
    assert (typed.machine_type, typed.accelerators, typed.spot) == ("g2-standard-4", (("nvidia-l4", 1),), False)
    here.emulator.scenario.denied = ("disks.get",)
    assert here.cloud.disks(machine) == []
    assert with_disk_types(here.cloud, machine).hardware.disks == (("", 120),)
    assert here.cloud.disks(replace(machine, disks=())) == []
    here.emulator.scenario.denied = ()
    gone = (*machine.disks, replace(machine.disks[0], name="of-the-region"))
    assert [one.name for one in here.cloud.disks(replace(machine, disks=gone))] == ["vm"]


def test_an_instance_that_says_next_to_nothing_is_one_of_unknown_type() -> None:
    from google.cloud import compute_v1 as compute

    zone = f"https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}"
    bare = messages.machine(compute.Instance(name="vm", status="TERMINATED", zone=zone), "p")
    assert bare.hardware == Hardware(ZONE, "", spot=False)
    given = compute.Instance({
        "name": "vm", "status": "TERMINATED", "zone": zone, "scheduling": {"preemptible": True},
        "machine_type": f"{zone}/machineTypes/g2-standard-8", "network_interfaces": [{"access_configs": [{}]}],
        "disks": [{"type_": "SCRATCH", "disk_size_gb": 375}, {"source": f"{zone}/disks/data", "type_": "PERSISTENT"}],
    })  # fmt: skip
    disks = (("local-ssd", 375), ("", 0))
    assert messages.machine(given, "p").hardware == Hardware(ZONE, "g2-standard-8", True, (), disks, address=True)


@pytest.mark.parametrize(
    "text", ["1970-01-01T01:00:00Z", "1969-12-31T17:00:00.000-08:00", "1970-01-01t01:00:00.000000000z"]
)
def test_a_time_has_every_form_of_rfc_3339(text: str) -> None:
    assert messages.moment(text) == 3600.0


@pytest.mark.parametrize(("status", "since"), [("RUNNING", 3600.0), ("STAGING", None), ("TERMINATED", None)])
def test_a_machine_that_runs_may_lack_the_time_of_its_start(status: str, since: float | None) -> None:
    from google.cloud import compute_v1 as compute

    given = compute.Instance({
        "name": "vm", "status": status, "zone": ZONE, "creation_timestamp": "1970-01-01T00:00:00-01:00",
        "scheduling": {"max_run_duration": {"seconds": 60}, "instance_termination_action": "STOP"},
    })  # fmt: skip
    machine = messages.machine(given, "p")
    assert machine.started == since
    assert machine.deadline == (3660.0 if status == "RUNNING" else None)
    given.last_stop_timestamp = "1970-01-03T00:00:00Z"  # it was started again since
    again = messages.machine(given, "p")
    assert (again.started, again.deadline) == ((172800.0, 172860.0) if status == "RUNNING" else (None, None))


def test_a_list_that_leaves_the_filter_out_of_account_adds_no_machine_of_others(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()
    here.made()
    here.made("theirs", labels={})
    listed = messages.scopes
    monkeypatch.setattr(messages, "scopes", lambda *args, **fields: listed(*args, **{**fields, "filter": ""}))
    cases: tuple[tuple[dict[str, str | None], list[str]], ...] = (
        ({"fcctl": None}, ["vm"]), ({"fcctl": "x"}, ["vm"]), ({"fcctl": "y"}, []), ({}, ["theirs", "vm"]),
    )  # fmt: skip
    for labels, found in cases:
        assert [one.name for one in here.cloud.machines(labels)[0]] == found


def test_a_machine_without_an_address_for_the_world(world: Worlds) -> None:
    here = world()
    machine = here.made(iap=True, service_account="sa@proj-one.iam.gserviceaccount.com")
    assert machine.external_ip is None
    raw = here.emulator.machine("vm").resource
    assert "accessConfigs" not in raw["networkInterfaces"][0]
    assert raw["serviceAccounts"][0]["email"] == "sa@proj-one.iam.gserviceaccount.com"


def test_a_machine_from_a_copy_of_a_disk(world: Worlds) -> None:
    here = world()
    here.made()
    (here.emulator.home("vm") / "kept").write_text("x")
    here.ok(here.cloud.stop(here.get(), rid()))
    assert not here.cloud.has_snapshot("copy")
    here.ok(here.cloud.snapshot(here.get(), "copy", rid()))
    assert here.cloud.has_snapshot("copy")
    here.ok(here.cloud.create(OTHER, here.spec("vm-copy", snapshot="copy"), rid()))
    assert (here.emulator.home("vm-copy") / "kept").read_text() == "x"
    assert here.get().power is Power.STOPPED


@pytest.mark.parametrize("page_size", [1, 2, 500])
def test_all_machines_of_all_zones_page_by_page(world: Worlds, page_size: int) -> None:
    here = world(page_size=page_size)
    for name, zone in (("a", ZONE), ("b", OTHER), ("c", ZONE), ("d", OTHER)):
        here.cloud.wait(here.cloud.create(zone, here.spec(name, labels={"fcctl": name}), rid()), 60)
    here.cloud.wait(here.cloud.create(ZONE, here.spec("theirs", labels={"other": "x"}), rid()), 60)
    found, unreachable = here.cloud.machines({"fcctl": None})
    assert [(one.name, one.zone) for one in found] == [("a", ZONE), ("b", OTHER), ("c", ZONE), ("d", OTHER)]
    assert unreachable == []
    assert [one.name for one in here.cloud.machines({"fcctl": "c"})[0]] == ["c"]
    assert [one.name for one in here.cloud.machines({"fcctl": None, "other": None})[0]] == []
    assert len(here.cloud.machines({})[0]) == 5


def test_threads_share_it(world: Worlds) -> None:
    here = world()
    made = here.made()
    fresh = GcpCloud(PROJECT, here.emulator.url, here.clock)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(fresh.machine, ZONE, "vm") for _ in range(16)]
        asked += [pool.submit(fresh.operations, ZONE, "vm") for _ in range(4)]  # type: ignore[arg-type]
        answers = [one.result(240) for one in asked]
    assert answers[:16] == [made] * 16


def test_zones_that_could_not_be_asked_are_named(world: Worlds) -> None:
    here = world()
    here.made("a")
    here.made("b", OTHER)
    here.emulator.scenario.unreachable = (OTHER,)
    found, unreachable = here.cloud.machines({"fcctl": None})
    assert [one.name for one in found] == ["a"]
    assert unreachable == [OTHER]


def test_a_list_is_seen_through_trouble_on_any_page(world: Worlds) -> None:
    here = world(page_size=1)
    for name in ("a", "b", "c"):
        here.made(name)
    for nth, do in ((2, {"http": 503}), (4, {"drop": "before"}), (6, {"http": 429})):
        here.emulator.faults.add(action="instances.aggregatedList", nth=nth, do=do)
    assert [one.name for one in here.cloud.machines({"fcctl": None})[0]] == ["a", "b", "c"]


def test_a_zone_nobody_has_heard_of(world: Worlds) -> None:
    here = world()
    with pytest.raises(ConfigError, match="us-west9-z") as error:
        here.cloud.machine("us-west9-z", "vm")
    assert "gcloud compute zones list" in str(error.value.hint)
    refusal = here.cloud.create("us-west9-z", here.spec(), rid()).refusal
    assert refusal is not None
    assert refusal.remedy is Remedy.FATAL


# -------------------------------------------------------------------------------------------------------------- waiting
def test_a_stop_that_takes_three_minutes(world: Worlds) -> None:
    here = world(latency=Latency(stop=180))
    machine = here.made()
    operation = here.cloud.stop(machine, rid())
    early = here.cloud.wait(operation, 30)
    assert (early.done, early.state) == (False, "RUNNING")
    assert here.get().power is Power.STOPPING
    began = here.clock.now()
    ended = here.ok(early)
    assert 100 < here.clock.now() - began < 300
    assert ended.finished is not None
    assert ended.started is not None
    assert ended.finished - ended.started == pytest.approx(180, abs=20)
    assert here.get().power is Power.STOPPED


def test_a_start_that_never_ends_is_given_back_as_it_stands(world: Worlds) -> None:
    here = world()
    machine = here.stopped()
    here.emulator.faults.add(action="instances.start", do={"never_finish": True})
    began = here.clock.now()
    operation = here.cloud.wait(here.cloud.start(machine, rid()), 300)
    assert (operation.done, operation.refusal) == (False, None)
    assert 300 <= here.clock.now() - began < 400
    assert len(here.clock.slept) < 60


def test_waiting_goes_on_through_trouble(world: Worlds) -> None:
    here = world(latency=Latency(stop=120))
    operation = here.cloud.stop(here.made(), rid())
    for nth, do in ((1, {"drop": "after"}), (2, {"http": 503}), (3, {"http": 429}), (4, {"drop": "before"})):
        here.emulator.faults.add(action="zoneOperations.wait", nth=nth, do=do)
    assert here.ok(operation).done


def test_an_operation_that_nothing_is_heard_of(world: Worlds) -> None:
    here = world(latency=Latency(stop=1000))
    operation = here.cloud.stop(here.made(), rid())
    here.emulator.faults.add(action="zoneOperations.*", do={"drop": "before"})
    with pytest.raises(CloudError, match="the cloud sent no reply about the stop of vm") as error:
        here.cloud.wait(operation, 200)
    assert error.value.hint


@pytest.mark.parametrize(("status", "finished"), [("DONE", 60.0), ("RUNNING", None)])
def test_an_operation_that_is_done_may_lack_the_time_of_its_end(status: str, finished: float | None) -> None:
    """It ended the machine all the same, no earlier than it began."""
    from google.cloud import compute_v1 as compute

    given = compute.Operation(name="op", status=status, operation_type="stop", start_time="1970-01-01T00:01:00Z")
    assert messages.operation(given).finished == finished
    given.end_time = "1970-01-01T00:02:00Z"
    assert messages.operation(given).finished == 120.0


def test_an_operation_the_cloud_has_forgotten(world: Worlds) -> None:
    here = world()
    operation = here.cloud.stop(here.made(), rid())
    here.emulator.world.operations.clear()
    ended = here.cloud.wait(operation, 60)
    assert ended.refusal is not None
    assert ended.refusal.remedy is Remedy.LOOK_AGAIN


def test_a_failure_that_was_carried_out_all_the_same(world: Worlds) -> None:
    """An operation's error does not say that nothing happened; whoever asked has to look."""
    here = world()
    machine = here.stopped()
    failure = {"code": "INTERNAL_ERROR", "http": None, "applied": True}
    here.emulator.faults.add(action="instances.start", do={"operation": failure})
    ended = here.cloud.wait(here.cloud.start(machine, rid()), 60)
    assert ended.refusal is not None
    assert here.get().power is Power.RUNNING


# ------------------------------------------------------------------------------------------------------------- fence 1
def test_the_deadline_is_set_whole_and_read_back(world: Worlds) -> None:
    here = world()
    machine = here.stopped(way="spot")
    raw = here.emulator.machine("vm").resource["scheduling"]
    raw["hostErrorTimeoutSeconds"], raw["minNodeCpus"] = 300, 2
    assert here.cloud.set_max_run(machine, 1234, rid()).refusal is None
    now = here.get()
    assert (now.max_run_s, now.termination_action, now.spot) == (1234, "STOP", True)
    assert now.deadline is None
    scheduling = here.emulator.machine("vm").resource["scheduling"]
    assert (scheduling["hostErrorTimeoutSeconds"], scheduling["minNodeCpus"]) == (300, 2)
    assert scheduling["onHostMaintenance"] == "TERMINATE"
    here.ok(here.cloud.start(now, rid()))
    started = here.get()
    assert started.deadline == pytest.approx((started.started or 0) + 1234)
    here.emulator.advance(1235)
    assert here.get().power in (Power.STOPPING, Power.STOPPED)


def test_a_machine_with_local_ssds_is_stopped_without_them(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service refuses a stop, and a deadline, that does not say what becomes of them."""
    here, sent = world(), []
    here.stopped()
    send = here.cloud._api.send
    monkeypatch.setattr(here.cloud._api, "send", lambda *args: (sent.append(args[2]), send(*args))[1])
    here.ok(here.cloud.stop(here.get(), rid()))
    here.ok(here.cloud.set_max_run(here.get(), 600, rid()))
    raw = here.emulator.machine("vm").resource
    plain = ["discard_local_ssd" in one for one in sent if hasattr(one, "discard_local_ssd")]
    assert (plain, "onInstanceStopAction" in raw["scheduling"]) == ([False], False)
    raw["disks"].append({"type": "SCRATCH", "diskSizeGb": "375", "deviceName": "local-ssd-0"})
    here.ok(here.cloud.stop(here.get(), rid()))
    here.ok(here.cloud.set_max_run(here.get(), 600, rid()))
    raw = here.emulator.machine("vm").resource
    assert [one.discard_local_ssd for one in sent if hasattr(one, "discard_local_ssd")] == [False, True]
    assert raw["scheduling"]["onInstanceStopAction"] == {"discardLocalSsd": True}


def test_an_end_at_a_set_time_gives_way(world: Worlds) -> None:
    here = world()
    machine = here.stopped()
    scheduling = here.emulator.machine("vm").resource["scheduling"]
    del scheduling["maxRunDuration"]
    scheduling.update(terminationTime="2030-01-01T00:00:00Z", instanceTerminationAction="DELETE")
    assert here.cloud.set_max_run(machine, 600, rid()).refusal is None
    assert "terminationTime" not in here.emulator.machine("vm").resource["scheduling"]
    assert here.get().termination_action == "STOP"


def test_a_deadline_that_does_not_hold_is_an_error(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    machine = here.stopped()
    monkeypatch.setitem(STEPS, "change", lambda *args, **values: None)
    with pytest.raises(CloudError, match="did not store the time limit of vm") as error:
        here.cloud.set_max_run(machine, 600, rid())
    assert error.value.cause == "fcctl set 600 s, then STOP; the cloud shows 3600 s, then STOP"


def test_a_read_that_is_behind_the_change_of_the_deadline_is_repeated(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()
    machine, read, until = here.stopped(), here.cloud._read_instance, here.clock.now() + 10
    before = read(ZONE, "vm")
    monkeypatch.setattr(here.cloud, "_read_instance", lambda *at: before if here.clock.now() < until else read(*at))
    assert here.cloud.set_max_run(machine, 600, rid()).refusal is None
    assert here.get().max_run_s == 600


def test_a_deadline_that_takes_too_long_is_an_error(world: Worlds) -> None:
    here = world()
    machine = here.stopped()
    here.emulator.faults.add(action="instances.setScheduling", do={"never_finish": True})
    with pytest.raises(CloudError, match="did not store the time limit of vm") as error:
        here.cloud.set_max_run(machine, 600, rid())
    assert "not finished after 120 s" in str(error.value.cause)


def test_a_machine_that_goes_away_while_its_deadline_is_set(world: Worlds) -> None:
    here = world()
    machine = here.stopped()
    gone = {"status": 404, "message": f"The resource 'projects/{PROJECT}/zones/{ZONE}/instances/vm' was not found"}
    here.emulator.faults.add(action="instances.get", nth="2+", do={"http": gone})
    with pytest.raises(NotFoundError, match="vm disappeared"):
        here.cloud.set_max_run(machine, 600, rid())


@pytest.mark.parametrize(("latency", "remedy"), [(0.1, Remedy.LOOK_AGAIN), (100, Remedy.NOT_READY)])
def test_the_deadline_of_a_machine_that_is_on(world: Worlds, latency: float, remedy: Remedy) -> None:
    here = world(latency=Latency(stop=latency))
    machine = here.made()
    if remedy is Remedy.NOT_READY:
        here.cloud.wait(here.cloud.stop(machine, rid()), 1)
    operation = here.cloud.set_max_run(machine, 600, rid())
    assert operation.refusal is not None
    assert operation.refusal.remedy is remedy
    assert here.get().max_run_s == 3600


# ------------------------------------------------------------------------------------------------------- what happened
@pytest.mark.parametrize("page_size", [1, 500])
def test_the_history_of_a_machine_newest_first(world: Worlds, page_size: int) -> None:
    here = world(page_size=page_size)
    machine = here.made()
    here.made("vm-2")
    here.clock.sleep(10)
    here.emulator.preempt("vm")
    here.clock.sleep(10)
    here.ok(here.cloud.start(machine, rid()))
    here.clock.sleep(10)
    here.emulator.control.happen("vm", "guestTerminate")
    kinds = [operation.type for operation in here.cloud.operations(ZONE, "vm")]
    assert kinds == ["compute.instances.guestTerminate", "start", "compute.instances.preempted", "insert"]
    assert here.cloud.operations(OTHER, "vm") == []
    here.ok(here.cloud.snapshot(here.get(), "snap", rid()))
    assert [operation.type for operation in here.cloud.operations(ZONE, "vm")] == kinds


def test_host_keys_come_from_the_guest_through_the_cloud(world: Worlds) -> None:
    here = world(latency=Latency(boot=300))
    machine = here.made()
    assert here.cloud.guest_attributes(machine, HOST_KEYS_PATH) == {}
    here.clock.sleep(301)
    keys = parse_host_keys(here.cloud.guest_attributes(machine, HOST_KEYS_PATH))
    assert [key.split()[0] for key in keys] == ["ssh-ed25519", "ecdsa-sha2-nistp256"]
    assert "listening" in here.cloud.serial_output(machine).lower()


def test_quotas_of_the_region_and_the_project(world: Worlds) -> None:
    here = world(quotas={"us-central1": {"NVIDIA_L4_GPUS": 1}, "global": {"GPUS_ALL_REGIONS": 0}})
    found = {(quota.metric, quota.region): quota for quota in here.cloud.quotas("us-central1")}
    assert found["NVIDIA_L4_GPUS", "us-central1"] == Quota("NVIDIA_L4_GPUS", "us-central1", 1, 0)
    assert found["GPUS_ALL_REGIONS", None].limit == 0
    with pytest.raises(CloudError, match="mars-north1"):
        here.cloud.quotas("mars-north1")


def test_permissions_on_a_machine(world: Worlds) -> None:
    here = world()
    machine = here.made()
    asked = ["compute.instances.start", "compute.instances.setScheduling", "compute.instances.delete"]
    assert here.cloud.missing_permissions(machine, asked) == []
    here.emulator.scenario.denied = ("instances.setScheduling", "instances.delete")
    assert here.cloud.missing_permissions(machine, asked) == asked[1:]


# ------------------------------------------------------------------------------------------------------------ firewall
IAP = {"source_ranges": ["35.235.240.0/20"], "allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}]}


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([IAP], True),
        ([{**IAP, "source_ranges": ["0.0.0.0/0"]}], True),
        ([{**IAP, "source_ranges": ["::/0", "nonsense"]}], False),
        ([{**IAP, "source_ranges": ["35.235.240.0/21"]}], False),
        ([{**IAP, "allowed": [{"I_p_protocol": "tcp", "ports": ["80", "20-30"]}]}], True),
        ([{**IAP, "allowed": [{"I_p_protocol": "TCP"}]}], True),
        ([{**IAP, "allowed": [{"I_p_protocol": "all"}]}], True),
        ([{**IAP, "allowed": [{"I_p_protocol": "udp", "ports": ["22"]}]}], False),
        ([{**IAP, "allowed": [{"I_p_protocol": "tcp", "ports": ["23-", "x", ""]}]}], False),
        ([{**IAP, "disabled": True}], False),
        ([{**IAP, "direction": "EGRESS"}], False),
        ([{**IAP, "target_tags": ["web"]}], False),
        ([{**IAP, "network": "global/networks/other"}], False),
        ([IAP, {**IAP, "allowed": [], "denied": [{"I_p_protocol": "tcp"}], "priority": 900}], False),
        ([IAP, {**IAP, "allowed": [], "denied": [{"I_p_protocol": "tcp"}]}], False),
        ([IAP, {**IAP, "allowed": [], "denied": [{"I_p_protocol": "all"}], "priority": 65534}], True),
    ],
)
def test_firewall_rules_as_the_service_weighs_them(rules: list[dict[str, Any]], allowed: bool) -> None:
    from google.cloud.compute_v1 import Firewall

    from orchestrator.providers.gcp.messages import allows_iap

    common = {"network": "https://x/projects/p/global/networks/default", "direction": "INGRESS", "priority": 1000}
    assert allows_iap([Firewall({**common, **rule}) for rule in rules], "default") is allowed
