"""Notices when parts of a cap are spent: each once, also with kills and with a hook that fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.hook import Hook
from tests.support.virtual_cloud import CloudWorkspace
from tests.support.workspace import Workspace

RATE, HOUR = 0.706832, 3600.0
#: Where it is about three o'clock: the machine's hours below are of one day.
ZONE = f"Etc/GMT{(datetime.now(UTC).hour - 3 + 12) % 24 - 12:+d}"


def notify(workspace: Workspace, hook: Hook, **caps: float) -> None:
    """Caps, and the hook that is told of them."""
    lines = "".join(f"{key} = {usd}\n" for key, usd in caps.items())
    with (workspace.root / "fcctl.toml").open("a") as file:
        file.write(f'\n[notify]\nwebhook = "{hook.url}"\non = ["budget"]\n[budget]\ntimezone = "{ZONE}"\n{lines}')


def told(hook: Hook) -> list[tuple[str, int]]:
    found = [(body["budget"]["cap"], body["budget"]["percent"]) for _, body in hook.got]
    hook.got.clear()
    return found


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator, hook: Hook) -> CloudWorkspace:
    found = CloudWorkspace(tmp_path / "w", private_home, cloud, max_run_minutes=300)
    # Five hours cost 3.57 dollars at most: half of the day's cap after 2.6 hours, 80 % after 4.1 hours.
    notify(found, hook, per_run_usd=9, per_day_usd=3.7, project_usd=50)
    return found


def test_each_part_of_a_cap_once_while_a_machine_is_on(workspace: CloudWorkspace, cloud: Emulator, hook: Hook) -> None:
    workspace.type("hosts", "up", "l4", "--minutes", "300", check=0)
    assert told(hook) == [], "it is reserved, not spent"
    cloud.advance(2.7 * HOUR)
    workspace.type("cost", "budget", check=0)
    ((_, body),) = hook.got
    budget = body["budget"]
    assert body["event"] == "budget"
    assert budget["spent_usd"] == pytest.approx(2.7 * (RATE + 0.005), abs=0.05)
    assert budget["reserved_usd"] == pytest.approx(2.3 * RATE, abs=0.2), "what may come yet"
    assert budget["cap_usd"] == 3.7
    assert body["text"].startswith(f"50 % of the day's cap of $3.70 are spent: ${budget['spent_usd']:.2f}; $")
    assert told(hook) == [("day", 50)]
    workspace.type("ps", check=0)
    assert told(hook) == []
    cloud.advance(1.6 * HOUR)
    workspace.type("ps", check=0)
    workspace.type("ps", check=0)
    assert told(hook) == [("day", 80)]
    workspace.type("hosts", "down", "l4", check=0)
    assert told(hook) == []


def test_a_hook_that_fails_is_tried_again_by_the_next_command(
    workspace: CloudWorkspace, cloud: Emulator, hook: Hook
) -> None:
    workspace.type("hosts", "up", "l4", "--minutes", "300", check=0)
    cloud.advance(2.7 * HOUR)
    hook.status = 500
    assert "HTTP status 500" in workspace.type("ps", check=0).err
    workspace.type("ps", check=0)
    assert told(hook) == [("day", 50)] * 2
    hook.status = 200
    workspace.type("ps", check=0)
    workspace.type("ps", check=0)
    assert told(hook) == [("day", 50)]


def spent(folder: Path, home: Path, hook: Hook, **caps: float) -> tuple[Workspace, float]:
    """A workspace whose target ``here`` costs 0.06 dollars a second, and what its one run cost, dollars. Half of a
    cap of 40 dollars are spent after five minutes: the run of a second may take long on a busy computer."""
    workspace = Workspace(folder, home)
    text = (folder / "fcctl.toml").read_text()
    (folder / "fcctl.toml").write_text(text.replace('kind = "local"', 'kind = "local"\nusd_per_hour = 216'))
    workspace.job("nap", "budget: {minutes: 1}\nsteps:\n  - {id: nap, run: sleep 1, timeout: 60}\n")
    notify(workspace, hook, **caps)
    workspace.fcctl("run", "nap", "--on", "here")
    return workspace, workspace.only_run()["cost"]["usd"]


def test_the_highest_part_of_each_cap_and_a_new_cap_anew(tmp_path: Path, private_home: Path, hook: Hook) -> None:
    workspace, usd = spent(tmp_path / "w", private_home, hook, per_day_usd=40, per_month_usd=4000, project_usd=1000)
    assert told(hook) == []
    config = workspace.root / "fcctl.toml"
    text = config.read_text()
    config.write_text(text.replace("per_day_usd = 40", f"per_day_usd = {usd / 0.995}"))
    workspace.fcctl("cost", "budget")
    assert told(hook) == [("day", 80)], "not 50 % too"
    text = text.replace("= 1000", f"= {usd / 0.6}")
    config.write_text(text.replace("per_day_usd = 40", f"per_day_usd = {0.99 * usd}"))
    workspace.fcctl("cost", "budget")
    workspace.fcctl("cost", "budget")
    assert told(hook) == [("day", 100), ("project", 50)]
    refused = workspace.fcctl("run", "nap", "--on", "here", check=5).stderr
    assert "of the day's cap of" in refused
    assert "cost ledger" in refused


def test_a_kill_in_the_midst_makes_no_second_one(tmp_path: Path, private_home: Path, hook: Hook) -> None:
    workspace, usd = spent(tmp_path / "w", private_home, hook, per_day_usd=40)
    config, heard = workspace.root / "fcctl.toml", tmp_path / "heard"
    command = json.dumps(["sh", "-c", f"echo $FCCTL_EVENT >> {heard}; kill -9 $PPID"])
    text = config.read_text().replace("[notify]", f"[notify]\ncommand = {command}")
    config.write_text(text.replace("per_day_usd = 40", f"per_day_usd = {0.99 * usd}"))
    codes = [workspace.fcctl("cost", "budget", check=None).returncode for _ in range(3)]
    assert (codes, heard.read_text().split()) == ([-9, 0, 0], ["budget"])


def test_two_at_once_make_one(tmp_path: Path, private_home: Path, hook: Hook) -> None:
    workspace, usd = spent(tmp_path / "w", private_home, hook, per_day_usd=40)
    config = workspace.root / "fcctl.toml"
    config.write_text(config.read_text().replace("per_day_usd = 40", f"per_day_usd = {0.99 * usd}"))
    both = [workspace.start("cost", "budget") for _ in range(3)]
    assert [process.communicate() and process.returncode for process in both] == [0] * 3
    assert told(hook) == [("day", 100)]


def test_while_a_run_is_followed(tmp_path: Path, private_home: Path, hook: Hook) -> None:
    """A run of hours tells when it happens, not at its end."""
    workspace, usd = spent(tmp_path / "w", private_home, hook, per_day_usd=40)
    config, seen = workspace.root / "fcctl.toml", tmp_path / "seen"
    command = json.dumps(["sh", "-c", f"ls {workspace.root}/results/active >> {seen}"])
    text = config.read_text().replace("[notify]", f"[notify]\ncommand = {command}")
    config.write_text(text.replace("per_day_usd = 40", f"per_day_usd = {usd / 0.01:.0f}\nproject_usd = {usd / 0.55}"))
    until = f"until [ -s {seen} ]; do sleep 0.1; done"  # else it might have ended before it is looked at
    workspace.job("nap", f"budget: {{minutes: 0.01}}\nsteps:\n  - {{id: nap, run: '{until}', timeout: 240}}\n")
    assert workspace.fcctl("run", "nap", "--on", "here", check=None).returncode in (0, 5, 100)
    assert [cap for cap, _percent in told(hook)[:1]] == ["project"], "80 % where a look comes late"
    assert "nap" in seen.read_text(), "the run was active then"
