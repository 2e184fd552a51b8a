"""What a run would cost, before anything is started."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fcctl_remote import wire
from orchestrator.base.clock import SystemClock, iso
from orchestrator.base.errors import BudgetError, CloudError, ConfigError, UsageError
from orchestrator.machines.cloud import Machine
from orchestrator.machines.targets import AcceptedPrices, GcpTarget, LocalTarget, SandboxTarget, SshTarget, Target
from orchestrator.money.caps import Budget
from orchestrator.results.records import CostLine, CostRecord, StepRecord
from orchestrator.results.store.store import FileStore
from orchestrator.runs.cost import estimate
from orchestrator.runs.cost.estimate import CostPlan, Past, plan_of_steps, with_own_price
from orchestrator.runs.job.job import parse
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.views.tables.money import print_cost_plan
from tests.support.budgets import listed
from tests.support.stores import NOVEMBER, completed, make_id

JOB = """
job: hello
steps:
  - {id: one, run: make, activity: bench}
  - {id: two, run: make, activity: bench}
"""
STEPS = [
    ("build", wire.StepSpec("build", "make", timeout_s=600)),
    ("test", wire.StepSpec("test", "make test", timeout_s=300, retries=1)),
]


def l4(**values: object) -> GcpTarget:
    zones = ["us-west1-c", "europe-west4-a"]
    return GcpTarget.model_validate({"name": "l4", "project": "my-project", "instance": "vm", "zones": zones, **values})


def plan(
    target: Target, budget: Budget | None = None, *, minutes: float | None = None, past: tuple[Past, ...] = ()
) -> CostPlan:
    return plan_of_steps("phase0", target, budget or listed(), STEPS, max_minutes=minutes, past=past)


def test_where_no_run_has_passed_names_the_target() -> None:
    out = io.StringIO()
    print_cost_plan(plan(LocalTarget(name="local")), Console(file=out, width=200), zones=False)
    assert "Expected: unknown, no run of this job has passed on local in this workspace." in out.getvalue()


@pytest.mark.parametrize(("usd", "shown"), [(0.0, ""), (3e-7, ""), (0.00006, "$0.0001"), (0.2, "$0.20")])
def test_what_downloads_cost_is_shown_unless_it_is_nothing(usd: float, shown: str) -> None:
    out = io.StringIO()
    print_cost_plan(replace(plan(l4()), egress_usd=usd), Console(file=out, width=200), zones=False)
    assert (f"{shown} for downloading" in out.getvalue()) == bool(shown)
    assert "$0.0000" not in out.getvalue()


def test_the_worst_case_is_that_of_the_run_itself() -> None:
    made = plan(l4())
    saved = SavedPlan.model_validate(
        {
            "plan": wire.encode(
                wire.RunPlan("20261121t081530z-a-l4-3fa9c1", "phase0", "l4", "w", "0" * 64, [s for _, s in STEPS])
            ),
            "target": l4().model_dump(),
            "source": {"tree_sha256": "0" * 64},
            "usd_per_hour": 0.706832,
            "worst_usd_per_hour": 4 * 0.03857144 + 0.588630286,
            "rest_usd_per_hour": 11.0 / 730 + 0.005,
        }
    )
    assert made.fence_s == saved.fence_s == 600 + 20 * 60 + 900
    assert made.worst_usd == pytest.approx(saved.worst_case_usd, rel=1e-5)
    whole = 4 * 0.03857144 + 0.588630286 + 11.0 / 730 + 0.005  # 100 GiB of pd-balanced, and an address
    assert made.worst_usd == pytest.approx((2700 + 30 + 60) / 3600 * whole, rel=1e-5)


def test_its_activities_add_up_to_the_fence_with_its_lateness_and_the_least_bill() -> None:
    for minutes, limit in ((None, 240), (12, 240), (None, 30), (12, 20)):
        made = plan(l4(max_run_minutes=limit), minutes=minutes)
        assert made.fence_s is not None
        assert sum(line.worst_s for line in made.lines) == pytest.approx(made.fence_s + 30 + 60)
        worst = {line.activity: line.worst_s for line in made.lines}
        assert (worst["boot"], worst["build"], worst["test"]) == (600, 600, 600)
        assert worst.get("limit of the job") == (None if minutes is None else -8 * 60)
    with pytest.raises(ConfigError, match="20 min"):
        plan(l4(max_run_minutes=19))


def test_every_zone_and_price_model_that_a_start_may_end_in_is_there_in_its_order() -> None:
    made = plan(l4(provisioning="spot_then_on_demand"))
    assert [(choice.zone, choice.model) for choice in made.choices] == [
        ("us-west1-c", "spot"),
        ("europe-west4-a", "spot"),
        ("us-west1-c", "on_demand"),
        ("europe-west4-a", "on_demand"),
    ]
    assert made.choices[0].price.usd == pytest.approx(0.423956)
    assert made.as_json()["spot"]["on_demand_usd_per_hour"] == pytest.approx(0.706832)
    assert made.worst_usd == max(choice.worst_usd for choice in made.choices) == made.choices[3].worst_usd


def test_expected_is_the_median_of_what_was_and_unknown_without() -> None:
    assert plan(l4()).expected_usd is None
    runs = ({"boot": 30.0, "build": 100.0}, {"boot": 50.0, "build": 90.0, "sync": 6.0}, {"boot": 40.0, "build": 800.0})
    made = plan(l4(usd_per_hour=3.6), past=runs)
    expected = {line.activity: line.expected_s for line in made.lines}
    assert (expected["boot"], expected["build"], expected["sync"], expected["test"]) == (40, 100, 0, None)
    assert made.expected_usd == pytest.approx(140 / 1000)
    assert made.runs_before == 3


def test_caps_that_would_refuse_it_are_named() -> None:
    made = plan_of_steps("p", l4(), listed(per_run_usd=0.5), STEPS, max_minutes=None, job_cap_usd=5.0)
    assert made.refused_by == ["per_run_usd of [budget]"]
    assert plan(l4(), listed(per_run_usd=2)).refused_by == []


def test_a_stopped_machine_still_costs_its_disk_and_perhaps_an_address() -> None:
    disk, address = plan(l4(disk_gb=200)).standing
    assert (disk.usd_per_month, disk.certain) == (20.0, True)
    assert (address.usd_per_month, address.certain) == (3.65, False)
    assert plan(l4(disk_type="hyperdisk-balanced")).standing[0].usd_per_month is None


def test_only_runs_that_passed_and_had_every_step_say_what_is_expected(tmp_path: Path) -> None:
    """And of those the newest ten, of this job on this target."""
    store, job = FileStore(tmp_path, SystemClock()), parse(JOB, "hello.yaml").job

    def was(seconds: float, at: float, *steps: str, breakdown: bool = True, **changes: object) -> None:
        lines = [CostLine(activity="bench", seconds=seconds, usd=0.0)] if breakdown else []
        records = [StepRecord(id=step, status="passed", exit_code=0) for step in steps]
        values = {"job": "hello", "steps": records, "cost": CostRecord(breakdown=lines), **changes}
        completed(store, make_id("hello", at=NOVEMBER + at), created=iso(NOVEMBER + at), **values)

    def expected() -> tuple[int, object]:
        made = estimate.cost_plan(store, job, l4(usd_per_hour=3.6), listed())
        return made.runs_before, made.expected_usd

    was(100, 0, "one", "two", breakdown=False)
    was(100, 1, "one")
    was(100, 2, "one", "two", status="failed")
    was(100, 3, "one", "two", target="other")
    assert expected() == (0, None)
    was(500, 4, "one", "two")
    was(700, 5, "one", "two", "three")
    assert expected() == (2, pytest.approx(0.6))
    for at in range(10):
        was(300, 10 + at, "one", "two")
    assert expected() == (10, pytest.approx(0.3))


def test_a_plan_of_no_step_for_the_machine_is_refused(tmp_path: Path) -> None:
    job = parse("job: hello\nsteps:\n  - {id: one, run: make, where: controller}\n", "hello.yaml").job
    with pytest.raises(UsageError, match="'hello'"):
        estimate.cost_plan(FileStore(tmp_path, SystemClock()), job, l4(), listed())


@pytest.mark.parametrize(
    ("own", "budget", "source"),
    [
        (1.0, 2.0, "usd_per_hour of [targets.box]"), (0.0, 2.0, "usd_per_hour of [targets.box]"),
        (None, 2.0, "usd_per_hour of [budget]"), (None, None, "no price given"),
    ],
)  # fmt: skip
def test_where_a_price_comes_from_is_told(own: float | None, budget: float | None, source: str) -> None:
    (choice,) = plan(SshTarget(name="box", host="a", usd_per_hour=own), listed(usd_per_hour=budget)).choices
    assert (choice.price.usd, choice.price.source) == (own if own is not None else budget or 0.0, source)


def test_other_kinds_of_targets() -> None:
    assert plan(LocalTarget(name="local"), listed(usd_per_hour=2.0)).choices[0].price.source == "no price given"
    assert plan(LocalTarget(name="local")).worst_usd == 0
    assert plan(SshTarget(name="box", host="a"), listed(usd_per_hour=1.5)).worst_usd == pytest.approx(0.5)
    sandbox = plan(SandboxTarget(name="sandbox"))
    assert sandbox.emulated
    assert sandbox.choices[0].price.usd == 0.706832
    assert sandbox.as_json()["choices"][0]["price"]["date"] == "2026-08-20"


# ----------------------------------------------------------------------------------- the machine that is there already
NOW = NOVEMBER
DEAR = Machine("my-project", "us-west1-c", "vm", "7", "TERMINATED", machine_type="g2-standard-96")


def priced(
    *, on: float | None = None, listed_: list[Machine] | None = None, accept: bool = False, planned: float | None = None
) -> tuple[list[str], list[str], Budget]:
    """What is asked and noted, and the budget. ``on``: this computer knows the machine, with that deadline; the cloud
    has ``listed_``, or does not answer."""
    asked: list[str] = []
    notes: list[str] = []

    def known(project: str, name: str) -> object:
        return None if on is None else SimpleNamespace(hardware=DEAR.hardware, deadline=on)

    def opened(target: object) -> object:
        asked.append("cloud")
        if listed_ is None:
            raise CloudError("no answer")
        return SimpleNamespace()

    services: Any = SimpleNamespace(
        book=SimpleNamespace(known=known), clouds=SimpleNamespace(open=opened),
        observer=SimpleNamespace(note=notes.append), clock=SimpleNamespace(now=lambda: NOW),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "find_machines", lambda *_: listed_)
        patch.setattr(estimate, "with_disk_types", lambda _, machine: machine)
        budget = with_own_price(services, l4(), listed(), AcceptedPrices(own=accept, old=True), planned)
    return asked, notes, budget


@pytest.mark.parametrize(
    "there",
    [
        {"listed_": []},
        {"listed_": [DEAR], "accept": True},
        {"listed_": [DEAR], "planned": 99.0},
        {"on": NOW, "listed_": [], "accept": True},  # the cloud's word is asked for
        {"on": NOW, "listed_": [], "planned": 0.5},
    ],
)
def test_a_machine_that_costs_more_than_its_target_is_used_if_that_is_accepted(there: dict[str, Any]) -> None:
    asked, notes, budget = priced(**there)
    assert asked == ["cloud"]
    assert not any("with a list price" in note for note in notes)
    assert [one.machine_type for one in budget.seen(l4())] == [one.machine_type for one in there["listed_"]]


@pytest.mark.parametrize(
    "there",
    [
        {"listed_": [DEAR]},
        {"listed_": [DEAR], "planned": 0.5},
        {"on": NOW - 1, "listed_": [DEAR]},  # it may be off by now
        {"on": NOW, "listed_": []},  # it is on, as this computer knows
        {"on": NOW - 1},  # the cloud does not answer: as it was seen last
    ],
)
def test_else_it_is_refused_before_it_is_started(there: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match=r"vm in us-west1-c costs more .* it is a g2-standard-96 \(on demand\)"):
        priced(**there)


@pytest.mark.parametrize(
    ("own", "machine_type", "told"),
    [
        (0.5, "g2-standard-96", True),
        (0.5, "g2-standard-4", False),
        (None, "g2-standard-96", False),
        (99.0, "g2-standard-96", False),
    ],
)
def test_a_price_of_ones_own_below_the_list_s_is_told_for_another_machine(
    own: float | None, machine_type: str, told: bool
) -> None:
    target, there = l4(usd_per_hour=own), replace(DEAR, machine_type=machine_type)
    found = list(estimate._remarks(target, listed().with_seen(target, [there.hardware])))
    assert bool(found) is told
    if told:
        assert "fcctl uses $0.50 from usd_per_hour of [targets.l4]" in found[0]


def test_fetching_costs_what_the_largest_of_the_last_runs_left(tmp_path: Path) -> None:
    store, job = FileStore(tmp_path, SystemClock()), parse(JOB, "hello.yaml").job
    assert estimate.cost_plan(store, job, l4(), listed()).egress_usd == 0.0
    runs = [
        completed(store, make_id("hello", at=NOVEMBER + at), created=iso(NOVEMBER + at), job="hello") for at in range(6)
    ]
    for number, mib in enumerate((9, 1, 3, 2, 1, 1)):  # the oldest of six counts no more
        (store.folder(runs[number]) / "big").write_bytes(bytes(mib << 20))
    largest = store.size(runs[2])
    assert 3 << 20 <= largest < 4 << 20
    assert estimate.cost_plan(store, job, l4(), listed()).egress_usd == pytest.approx(largest / 2**30 * 0.12)
    assert estimate.cost_plan(store, job, LocalTarget(name="local"), listed()).egress_usd == 0.0


def test_without_an_answer_of_the_cloud_a_price_is_accepted_for_nothing() -> None:
    _, notes, budget = priced()
    assert (len(budget.seen(l4())), notes[0]) == (
        0, "the price of vm is computed as [targets.l4] describes it: no answer",
    )  # fmt: skip
    with pytest.raises(CloudError):
        priced(accept=True)
