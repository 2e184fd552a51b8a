"""Runs, sessions, audits and caps on the machines of a provider that fcctl has never heard of: nothing but its package
and its kind of target is added."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.emulator.emulator import Emulator
from orchestrator.machines import targets
from orchestrator.providers import registry
from tests.integration.second_provider.rental import EXPIRES, Rental, RentalCheckup, RentalClient, RentalTarget
from tests.support.midday import midday_zone
from tests.support.patience import patient
from tests.support.workspace import Workspace

RATE = 3.6  # dollars an hour: a tenth of a cent a second
HELLO = "steps:\n  - {id: say, run: 'echo hello', timeout: 60}\n"


class RentalWorkspace(Workspace):
    """A workspace whose target ``r`` is a server of the provider; :meth:`type` runs fcctl in this process."""

    def __init__(
        self, folder: Path, home: Path, rental: Rental, caps: str = "per_run_usd = 9.0", **target: Any
    ) -> None:
        super().__init__(folder, home)
        self.rental = rental
        values = {
            "kind": "rental", "project": "rental-account", "instance": "gpu-one", "zones": ["north", "south"],
            "usd_per_hour": RATE, "api_endpoint": rental.emulator.url, "identity_file": str(home / "rental-key"),
            "disk_usd_per_gib_month": 0.0, "address_usd_per_hour": 0.0,
        }  # fmt: skip
        with (folder / "fcctl.toml").open("a") as file:
            file.write("\n[targets.r]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
            file.write(f'\n[budget]\ntimezone = "{midday_zone()}"\n{caps}\n')
        self.job("hello", HELLO)

    def type(self, *args: str, check: int = 0) -> tuple[str, str]:
        out, err = io.StringIO(), io.StringIO()
        with patient(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["-C", str(self.root), *args])
        assert code == check, f"{args}: {code}\n{out.getvalue()}\n{err.getvalue()}"
        return out.getvalue(), err.getvalue()

    def asked(self, *args: str, check: int = 0) -> Any:
        return json.loads(self.type(*args, "--json", check=check)[0])

    def states(self) -> dict[str, str]:
        return {region: server.state for (region, _), server in self.rental.servers.items()}


@pytest.fixture
def rental(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rental]:
    with Emulator() as emulator:
        found = Rental(emulator)
        provider = registry.Provider(
            lambda clock: RentalClient(found, clock), lambda target, clouds, book: RentalCheckup(target, found)
        )
        monkeypatch.setitem(targets.KINDS, "rental", RentalTarget)
        monkeypatch.setitem(registry.PROVIDERS, "rental", provider)
        yield found


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, rental: Rental) -> RentalWorkspace:
    return RentalWorkspace(tmp_path / "ws", private_home, rental)


def most_s(rental: Rental) -> float:
    """The most seconds that may be billed, for each start the larger of a minute and the time the server was on plus
    30 s: fcctl sees its end later."""
    spans = [(off or rental.now()) - on for server in rental.servers.values() for on, off in server.spans]
    return sum(max(60.0005, seconds + 30) for seconds in spans)


def test_a_run_rents_wakes_and_turns_off(workspace: RentalWorkspace, rental: Rental) -> None:
    workspace.type("run", "hello", "--on", "r")
    assert workspace.states() == {"north": "off"}
    record = workspace.only_run()
    assert (record["status"], record["machine"]["released"]) == ("passed", "stopped")
    assert record["cost"]["usd_per_hour"] == RATE
    workspace.type("run", "hello", "--on", "r")
    verbs = [verb for verb, *_ in rental.log]
    assert verbs.count("rent") == 1, "the second run found it"
    for place, verb in enumerate(verbs):
        if verb == "turn on":
            assert "rent" in verbs[:place] or "tag" in verbs[:place], "no start without the tag that the reaper reads"
    journal = (workspace.root / "results/runs" / record["run_id"] / "journal.jsonl").read_text()
    kinds = [json.loads(line)["kind"] for line in journal.splitlines()]
    assert kinds.index("armed") < kinds.index("sync") < kinds.index("released")
    (day,) = workspace.asked("cost", "ledger")["totals"]
    assert rental.seconds_billed() <= day["seconds"] <= most_s(rental), (
        "a minute at least for each start, never less than billed"
    )
    assert day["usd"] == pytest.approx(day["seconds"] * RATE / 3600)


def test_no_server_in_one_region_and_then_in_none(workspace: RentalWorkspace, rental: Rental) -> None:
    rental.sold_out = {"north"}
    workspace.type("run", "hello", "--on", "r")
    assert workspace.states() == {"south": "off"}
    rental.sold_out = {"north", "south"}
    text = (workspace.root / "fcctl.toml").read_text()
    (workspace.root / "fcctl.toml").write_text(text.replace("[targets.r]\n", '[targets.r]\non_stockout = "fail"\n'))
    assert "south has no free machine for gpu-one" in workspace.type("run", "hello", "--on", "r", check=5)[1]
    assert "north" in workspace.type("doctor", "--on", "r")[0]


def test_the_reaper_turns_off_what_nobody_released(workspace: RentalWorkspace, rental: Rental) -> None:
    workspace.type("hosts", "up", "r", "--minutes", "30")
    assert workspace.states() == {"north": "on"}
    (server,) = rental.servers.values()
    assert server.tags[EXPIRES] == "1800"
    found = workspace.asked("hosts", "audit")
    assert [(one["name"], one["verdict"]) for one in found["machines"]] == [("gpu-one", "up")]
    rental.pass_time(1801)
    assert workspace.states() == {"north": "off"}
    assert "r" in workspace.type("hosts", "ls")[0]


def test_a_session_keeps_it_warm_for_two_runs(workspace: RentalWorkspace, rental: Rental) -> None:
    workspace.type("session", "start", "--on", "r", "--budget", "4", "--max-hours", "1")
    for _ in range(2):
        workspace.type("run", "hello", "--on", "r")
        assert workspace.states() == {"north": "on"}
    assert {run["machine"]["released"] for run in workspace.runs().values()} == {"kept"}
    assert [verb for verb, *_ in rental.log].count("turn on") == 1
    assert workspace.asked("hosts", "audit")["machines"][0]["verdict"] == "session"
    ended = workspace.asked("session", "stop")
    assert workspace.states() == {"north": "off"}
    assert 0 < ended["usd"] < 1


def test_what_is_on_for_nobody_is_found_and_turned_off(workspace: RentalWorkspace, rental: Rental) -> None:
    labels = {"fcctl": "yes", "fcctl-run": "20261121t081530z-job-r-abc123"}
    server = rental.rent("south", "stray", labels, {}, "by-hand")
    rental.turn("on", server, "by-hand-on")
    found = workspace.asked("hosts", "audit", check=10)
    assert [(one["name"], one["verdict"]) for one in found["machines"]] == [("stray", "stray")]
    workspace.type("hosts", "audit", "--stop")
    assert server.state == "off"


def test_a_machine_whose_target_is_gone_is_looked_for_at_its_own_provider(
    workspace: RentalWorkspace, rental: Rental
) -> None:
    workspace.type("hosts", "up", "r", "--minutes", "30")
    text = (workspace.root / "fcctl.toml").read_text()
    (workspace.root / "fcctl.toml").write_text(text.replace('"rental-account"', '"another-account"'))
    rental.accounts.clear()
    workspace.asked("hosts", "audit")
    assert {"rental-account", "another-account"} <= set(rental.accounts)


def test_caps_hold_before_anything_is_rented(tmp_path: Path, private_home: Path, rental: Rental) -> None:
    workspace = RentalWorkspace(tmp_path / "dear", private_home, rental, caps="per_run_usd = 0.5")
    refused = workspace.type("run", "hello", "--on", "r", check=5)[1]
    assert "per_run_usd" in refused
    workspace = RentalWorkspace(tmp_path / "day", private_home, rental, caps="per_run_usd = 9\nper_day_usd = 2.5")
    workspace.type("run", "hello", "--on", "r")
    caps = {cap["cap"]: cap for cap in workspace.asked("cost", "budget")["caps"]}
    assert rental.seconds_billed() * RATE / 3600 <= caps["today"]["spent_usd"] <= most_s(rental) * RATE / 3600
    workspace.job("long", HELLO.replace("60", "2400"))
    refused = workspace.type("run", "long", "--on", "r", check=5)[1]
    assert "per_day_usd" in refused
    assert workspace.states() == {"north": "off"}


def test_a_kind_of_its_own(workspace: RentalWorkspace) -> None:
    """It is in the list of kinds, and a kind that nobody knows is refused."""
    with (workspace.root / "fcctl.toml").open("a") as file:
        file.write('\n[targets.other]\nkind = "renta"\n')
    assert "did you mean 'rental'" in workspace.type("run", "hello", "--on", "r", check=3)[1]
