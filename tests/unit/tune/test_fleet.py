"""Which machines a fleet has, what a member is told, and what is made of what the search's machine says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_tune.workers.member import GAVE_UP, UNAVAILABLE
from orchestrator.base.errors import HostFault, UsageError
from orchestrator.machines.targets import GcpTarget, LocalTarget, SshTarget
from orchestrator.runs.job.plan import make_plan
from orchestrator.tune.fleet_rules import (
    HOST_LINE,
    MOST_HOSTS,
    Scheduler,
    check_apart,
    machines,
    member_job,
)
from orchestrator.tune.search_file import COMMAND, SearchFile, SearchOptions, job_of, parse

L4 = GcpTarget(name="l4", project="a-project", instance="vm", zones=["us-west1-c"])
SAID: dict[str, Any] = {"schema": 1, "port": 8786, "tls": {"pem": "KEY"}}


def test_machines_like_one_are_called_after_it() -> None:
    found = machines(L4, 3)
    assert [(m.name, getattr(m, "instance", "")) for m in found] == [("l4", "vm"), ("l4-2", "vm-2"), ("l4-3", "vm-3")]
    assert found[1].model_copy(update={"name": "l4", "instance": "vm"}) == L4


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (SshTarget(name="box", host="h"), "of kind ssh"),
        (LocalTarget(name="here"), "of kind local"),
        (L4.model_copy(update={"name": "l" * 23}), "too long"),
        (L4.model_copy(update={"instance": "v" * 63}), "too long"),
    ],
)
def test_what_cannot_be_made_is_no_host(target: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        machines(target, 2)


def test_a_machine_is_in_a_fleet_once() -> None:
    box = SshTarget(name="box", host="h")
    check_apart([box, SshTarget(name="other", host="h2")])
    check_apart(machines(L4, MOST_HOSTS))
    with pytest.raises(UsageError, match="box is named twice"):
        check_apart([box, box])
    with pytest.raises(UsageError, match="box and alias are the same machine"):
        check_apart([box, SshTarget(name="alias", host="h", env={"A": "b"})])
    with pytest.raises(UsageError, match="here is this computer"):
        check_apart([box, LocalTarget(name="here")])
    with pytest.raises(UsageError, match="at most 16 machines"):
        check_apart([L4.model_copy(update={"instance": f"vm-{n}"}) for n in range(MOST_HOSTS + 1)])


class Nothing:
    tree_sha256 = "ab" * 32
    git_commit = None


def test_a_member_has_what_the_search_has_but_for_its_command() -> None:
    tuning = wire.Tuning('{"tune": "x"}', "cd" * 32)
    step = wire.StepSpec("tune", "search", timeout_s=1200.0, tune=tuning)
    search = wire.RunPlan("20261121t081530z-tune-a-3fa9c1", "tune", "a", "w", "ab" * 32, [step], title="Tune x")
    job = member_job(search, "b", {"N": "4"})
    box = SshTarget(name="b", host="h", env={"FCCTL_PYTHON": "/py"})
    plan = make_plan(job, box, Nothing(), {"N": "5"}, None, "r", 0.0, workspace="w", searches={"member": tuning})
    (member,) = plan.steps
    assert (member.tune, member.timeout_s, member.activity) == (tuning, 1200.0, "tune")
    assert member.exit_codes == {str(UNAVAILABLE): "unavailable", str(GAVE_UP): "warned"}
    told = '--spec "$FCCTL_TUNE_SPEC" --join "$FCCTL_RUN_DIR/fleet/join.json"'
    assert member.run == f'"$FCCTL_TUNE_PYTHON" "$FCCTL_TUNE" member --host b {told}'
    assert plan.env == {"N": "5", "FCCTL_PYTHON": "/py"}
    assert search.run_id in plan.title
    assert plan.lock == "exclusive", "nothing else is timed beside it"


def test_a_member_is_told_where_the_search_is_and_how_it_gets_in() -> None:
    scheduler = Scheduler.read(json.dumps(SAID).encode(), "a")
    told = json.loads(scheduler.invitation(40000))
    assert told == {"schema": 1, "scheduler": 40000, "tls": {"pem": "KEY"}}
    assert "KEY" not in f"{scheduler!r} {scheduler}", "it may come into a log"


@pytest.mark.parametrize(
    "data",
    [
        *(json.dumps(SAID | {"port": port}).encode() for port in (0, 65536, "22", True, None)),
        json.dumps(SAID | {"schema": 2}).encode(), b"", b"[]", b"{}", b"\xff", b"null", b"1",
        json.dumps(SAID | {"tls": None}).encode(),
    ],
)  # fmt: skip
def test_what_makes_no_sense_or_has_no_key_is_refused(data: bytes) -> None:
    is_open = b'"tls": null' in data
    with pytest.raises(HostFault, match="any user" if is_open else "is invalid") as refused:
        Scheduler.read(data, "a")
    assert ("openssl" in str(refused.value.hint)) is is_open


def test_a_line_about_a_host() -> None:
    for line in (b"host b: 2 x NVIDIA L4, 15 builds at once", b"host l4-2: lost"):
        assert HOST_LINE.fullmatch(line)
    for line in (
        b"host b:",
        b"hosts: 2",
        b"host b c: lost",
        b"trial host b: x",
        b"host b: a\rb",
        b"host b: " + b"x" * 400,
    ):
        assert not HOST_LINE.fullmatch(line)


SPEC = """\
tune: x
parameters: {N: [1, 2]}
check: 'true'
bench: 'true'
metric: {reader: metrics, file: m.json, value: metrics.us}
"""


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (SearchOptions(), "--strategy auto"),
        (SearchOptions(host="b"), '--strategy auto --fleet "$FCCTL_RUN_DIR/fleet/fleet.json" --host b'),
    ],
)
def test_what_the_search_is_told_of_its_workers(asked: SearchOptions, words: str) -> None:
    (step,) = job_of(parse(SearchFile.read(SPEC, "x.yaml")), asked).steps
    assert step.run == f"{COMMAND} {words}"
