"""Steps that misbehave, driven through fcctl: a defined outcome, a clear message, nothing outside the run's folder."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.base.clock import SystemClock
from orchestrator.results.store.store import FileStore
from tests.support.forked import FCCTL
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

MESS = r"""
steps:
  - id: mess
    run: |
      cd "$FCCTL_OUT"
      ln -s /etc/passwd link
      ln -s /etc folder
      mkfifo pipe
      truncate -s 5G sparse
      printf x > "$(printf 'new\nline')"
      printf x > "quote'\" name"
      printf x > -rf
      mkdir -p deep/er && printf ok > deep/er/fine.txt
      printf x > "$(printf 'bad\377utf8')"
      printf '{"kind": "metrics", "schema_version": 1, "metrics": {"a": 1}}' > good.json
      printf '{"kind": "metrics", "schema_version": 1, "metrics": {"b": 1}}' > .hidden.json
      cd "$FCCTL_ARTIFACTS"
      git init -q . && git config core.fsmonitor "touch $HOME/fired"
      printf '[project]\nname = "theirs"\n' > fcctl.toml
"""
NOISE = r"""
steps:
  - id: noise
    run: |
      printf '\033]0;owned\007\033[2J\033[31mred\033[0m \302\233 bell\007\n'
      printf 'invalid \377\376 bytes\n'
      head -c 10000000 /dev/zero | tr '\0' x
      printf '\nthe last line\n'
      exit 3
"""
LONG = """
steps:
  - id: long
    run: |
      echo started
      touch "$MARK"
      until [ -e "$HOME/go" ]; do sleep 0.1; done
      echo finished
  - id: last
    run: echo last
env: {MARK: unset}
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    for name, text in (("mess", MESS), ("noise", NOISE), ("long", LONG)):
        made.job(name, text)
    return made


def everything_below(folder: Path) -> list[Path]:
    return [Path(root) / name for root, dirs, files in os.walk(folder) for name in [*dirs, *files]]


def begun(workspace: Workspace, tmp_path: Path) -> subprocess.Popen[str]:
    """``fcctl run long``, whose first step is at work."""
    running = workspace.start("run", "long", "--on", "here", "--set", f"MARK={tmp_path / 'm'}")
    wait_for((tmp_path / "m").exists)
    return running


def go_on(workspace: Workspace) -> None:
    """Let the step of ``long`` end."""
    (workspace.home / "go").touch()


def test_a_result_folder_full_of_traps(workspace: Workspace, tmp_path: Path) -> None:
    before = {p for p in everything_below(tmp_path) if "results" not in p.parts and "home" not in p.parts}
    ran = workspace.fcctl("run", "mess", "--on", "here")
    record, folder = workspace.only_run(), workspace.only_folder()
    reasons = {os.path.basename(o["path"]): o["reason"] for o in record["omitted"]}
    assert reasons["link"] == "symlink"
    assert reasons["folder"] == "symlink"
    assert reasons["pipe"] == "fifo"
    assert reasons["sparse"] == "too_large"
    assert len([r for r in reasons.values() if r == "bad_name"]) == 2, reasons
    assert record["status"] == "passed"
    assert (folder / "steps/mess/out/deep/er/fine.txt").read_text() == "ok"
    assert (folder / "steps/mess/out/quote'\" name").read_text() == "x"
    renamed = {entry["path"]: entry["stored"] for entry in record["renamed"]}
    assert renamed == {
        "artifacts/.git": "artifacts/_.git_", "artifacts/fcctl.toml": "artifacts/_fcctl.toml_",
        "steps/mess/out/.hidden.json": "steps/mess/out/_.hidden.json_",
    }  # fmt: skip
    assert "artifacts/_fcctl.toml_" in ran.stdout
    shown = workspace.json("results", "show")
    assert [d["content"]["metrics"] for d in shown["documents"]] == [{"b": 1}, {"a": 1}], "found by the host's name"
    subprocess.run(["git", "status"], cwd=folder / "artifacts", env=workspace.env(), capture_output=True, check=False)
    assert not (workspace.home / "fired").exists()
    for path in everything_below(folder):
        assert not path.is_symlink()
        assert path.is_dir() or (path.is_file() and path.stat().st_size < 1_000_000)
    after = {p for p in everything_below(tmp_path) if "results" not in p.parts and "home" not in p.parts}
    assert after == before


def test_a_log_full_of_noise(workspace: Workspace) -> None:
    done = workspace.fcctl("run", "noise", "--on", "here", "-v", check=100)
    assert "the last line" in done.stdout
    for stream in (done.stdout, done.stderr):
        assert "\033" not in stream
        assert "\007" not in stream
        assert "\x9b" not in stream
    log = workspace.only_folder() / "steps/noise/log.txt"
    assert log.stat().st_size > 10_000_000, "every byte is kept"
    raw = subprocess.run(
        [*FCCTL, "logs", "last", "-q"], cwd=workspace.root, env=workspace.env(), capture_output=True, check=True
    ).stdout
    assert raw == log.read_bytes(), "a pipe gets what was written"


#: JSON that Python reads and the controller does not: half a surrogate pair, and brackets 300 deep.
UNREADABLE = r"""
steps:
  - id: half
    run: |
      deep="$(printf '%300s' '' | tr ' ' '[')$(printf '%300s' '' | tr ' ' ']')"
      for value in '"\ud800"' "$deep"; do
        echo '{"seq":1,"time":1.0,"type":"warning","data":{"message":'"$value"'}}' >> "$FCCTL_RUN_DIR/events.jsonl"
        echo '{"time":1.0,"load1":'"$value"'}' >> "$FCCTL_RUN_DIR/telemetry.jsonl"
        echo '{"kind":"environment","checks":[],"gpu":{"name":'"$value"'},"os":NaN}' > "$FCCTL_OUT/${#value}.json"
      done
      head -c 9000000 /dev/zero | tr '\0' x > "$FCCTL_OUT/name"
      echo '{"kind":"environment","checks":[],"cpu":"'"$(cat "$FCCTL_OUT/name")"'"}' > "$FCCTL_OUT/huge.json"
      echo '{"kind":"metrics","metrics":{"\ud800":"\udfff"}}' > "$FCCTL_OUT/m.json"
    gates:
      - {expr: 'metrics.metrics.none == 1', optional: true}
  - id: last
    run: echo over
"""


def test_what_a_step_wrote_for_no_parser_but_python_s_does_not_keep_its_run_from_coming_home(
    workspace: Workspace,
) -> None:
    workspace.job("unreadable", UNREADABLE)
    workspace.fcctl("run", "unreadable", "--on", "here")
    record = workspace.only_run()
    assert [step["status"] for step in record["steps"]] == ["passed", "passed"]
    assert "its keys: ?" in record["steps"][0]["gates"][0]["hint"]
    assert workspace.active() == []


def test_ctrl_c_leaves_and_attach_comes_back(workspace: Workspace, tmp_path: Path) -> None:
    running = begun(workspace, tmp_path)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()
    assert running.returncode == 130
    (run_id,) = workspace.active()
    assert f"fcctl attach {run_id}" in err
    assert f"fcctl cancel {run_id}" in err
    (state,) = workspace.json("ps")["runs"]
    assert state["state"] == "running"
    assert state["summary"]["step"] == "long"
    go_on(workspace)
    workspace.fcctl("attach", run_id)
    assert workspace.only_run()["status"] == "passed"


def test_cancel_from_elsewhere(workspace: Workspace, tmp_path: Path) -> None:
    running = begun(workspace, tmp_path)
    (run_id,) = workspace.active()
    workspace.fcctl("cancel", run_id)
    _, err = running.communicate()
    assert running.returncode == 103, err
    record = workspace.only_run()
    assert record["status"] == "cancelled"
    assert [s["status"] for s in record["steps"]] == ["cancelled", "skipped"]
    assert workspace.json("cancel", run_id)["runs"] == [{"run_id": run_id, "status": "cancelled", "changed": False}]


def test_a_look_at_a_run_does_not_keep_cancel_from_collecting_it(workspace: Workspace, tmp_path: Path) -> None:
    run_id = workspace.fcctl("run", "long", "--on", "here", "-d", "--set", f"MARK={tmp_path / 'm'}").stdout.strip()
    wait_for((tmp_path / "m").exists)
    look = FileStore(workspace.root / "results", SystemClock()).claim(run_id)
    assert look is not None
    cancel = workspace.start("cancel", run_id)
    # It has met the look by then. It waits a few seconds for its end, whatever the run takes to end.
    wait_for((workspace.home / f".fcctl/runs/{run_id}/cancel.json").exists)
    look.release()
    _, err = cancel.communicate()
    assert (cancel.returncode, err) == (0, f"{run_id}: cancelled\n")
    assert workspace.only_run()["status"] == "cancelled"


def test_two_runs_on_one_host_take_turns(workspace: Workspace, tmp_path: Path) -> None:
    first = begun(workspace, tmp_path)
    second = workspace.start("run", "long", "--on", "here", "--set", f"MARK={tmp_path / 'n'}")
    wait_for(lambda: [s["state"] for s in workspace.json("ps")["runs"]] == ["followed"] * 2)
    waits = workspace.home / ".fcctl/runs"
    wait_for(lambda: sum("queued" in path.read_text() for path in waits.glob("*/events.jsonl")) == 1)
    assert not (tmp_path / "n").exists()
    go_on(workspace)
    _, err = second.communicate()
    assert "queued" in err
    first.communicate()
    assert first.returncode == 0
    assert second.returncode == 0
    runs = sorted(workspace.runs().values(), key=lambda r: r["steps"][0]["started"])
    assert runs[0]["steps"][-1]["finished"] <= runs[1]["steps"][0]["started"]
