"""What steps take long to load is loaded while their source is on its way: once a boot, and nobody waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.host_program.agent_client import Agent, Host, step
from tests.support.waiting import wait_for


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """With a torch that notes each import."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    [site] = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    note = f"open({str(tmp_path / 'imports')!r}, 'a').write('x'); import os, time"
    (site / "torch" / "__init__.py").write_text(f"{note}; time.sleep(float(os.environ.get('SLOW', 0)))")
    (site / "torch" / "version.py").write_text("cuda = None")
    return tmp_path / "venv" / "bin" / "python3"


def imports(tmp_path: Path) -> int:
    noted = tmp_path / "imports"
    return len(noted.read_text()) if noted.exists() else 0


def test_torch_is_imported_once_a_boot_for_each_environment(host: Host, python: Path, tmp_path: Path) -> None:
    boots = [host.agent(FCCTL_EMULATOR_BOOT_ID=boot) for boot in ("first", "second")]
    env = {"FCCTL_PYTHON": str(python)}
    for _ in range(2):
        boots[0].call("warm", {"env": env})
    wait_for(lambda: imports(tmp_path) == 1)
    for agent in boots:
        agent.call("warm", {"env": env})
    wait_for(lambda: imports(tmp_path) == 2)
    boots[1].call("warm", {"env": {**env, "CUDA_HOME": "/opt/other"}})
    wait_for(lambda: imports(tmp_path) == 3)


def test_the_run_finds_what_was_found_out_and_waits_for_no_import(
    host: Host, agent: Agent, python: Path, tmp_path: Path
) -> None:
    facts, env = host.root / "facts.json", {"FCCTL_PYTHON": str(python)}
    known = facts.read_bytes() if facts.exists() else b""
    agent.call("warm", {"env": {**env, "SLOW": "30"}})
    wait_for(lambda: imports(tmp_path) == 1)
    found = facts.read_bytes()
    assert found != known
    run_id = agent.submit(step("shown", 'test "$FCCTL_PYTHON" = ' + str(python)), env=env)
    assert agent.outcome(run_id).status == "passed"
    assert facts.read_bytes() == found, "looked up once"
    subprocess.run(["pkill", "-f", f"^{python} -c import torch"], check=True)  # it was at it all the time


def test_a_run_that_has_the_machine_is_not_disturbed(host: Host, agent: Agent, python: Path, tmp_path: Path) -> None:
    run_id = agent.submit(step("busy", "sleep 300"))
    agent.wait_for(run_id, "step_started")
    agent.call("warm", {"env": {"FCCTL_PYTHON": str(python)}})
    agent.call("cancel", {"run_id": run_id, "reason": "x", "grace_s": 0})
    agent.outcome(run_id)
    assert imports(tmp_path) == 0

    def warm_again() -> bool:  # a run gives the machine back after its outcome is known
        agent.call("warm", {"env": {"FCCTL_PYTHON": str(python)}})
        return imports(tmp_path) == 1

    wait_for(warm_again)


def test_a_folder_in_the_place_of_the_record_is_put_aside(host: Host, agent: Agent) -> None:
    (host.root / "warmed.json").mkdir()
    agent.call("warm", {"env": {}})
    assert (host.root / "warmed.json").is_file()
