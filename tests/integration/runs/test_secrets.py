"""Secrets of a run: in its steps' environment, and in no file of either computer."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

from orchestrator.base.installation import to_install
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

SECRET = "planted-7f3a9c-value"
JOB = """
env: {TITLE: plain}
secrets: [OF_THE_JOB]
steps:
  - id: here
    where: controller
    run: 'echo "here $OF_THE_TARGET"; test -n "$OF_THE_JOB"'
  - id: prints
    run: |
      set -x
      echo "job $OF_THE_JOB target $OF_THE_TARGET"
      printf %s planted-7f3a; sleep 0.2; echo 9c-value
      tr '\\0' ' ' </proc/self/cmdline
      python3 -c 'import os; print(os.environ["OF_THE_JOB"])' >&2
      for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; done 2>/dev/null |
        grep -c 'planted-7f3a[9]c' && exit 7 || true
  - id: fails
    run: 'echo "last words: $OF_THE_JOB"; exit 3'
    gates: ['env.OF_THE_JOB == "x"']
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, sshd, secrets=["OF_THE_TARGET"])
    made.job("job", JOB)
    with (made.root / "fcctl.toml").open("a") as config:
        config.write('\n[secrets.OF_THE_TARGET]\ncommand = "printf %s planted-7f3a; echo 9c-value"\n')
    return made


def files_with(text: str, *folders: Path) -> list[str]:
    argv = ["grep", "-rlaF", "-f", "-", *map(str, folders)]  # not as a word, which a step of another test would find
    done = subprocess.run(argv, input=f"{text}\n", capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", ["box", "here"])
def test_a_secret_is_found_nowhere(workspace: Workspace, sshd: LoopbackSshd, target: str) -> None:
    with (workspace.root / "fcctl.toml").open("a") as config:
        config.write('\n[targets.local]\nsecrets = ["OF_THE_TARGET"]\n')
    env = {"OF_THE_JOB": SECRET}
    on = {"box": "box", "here": "local"}[target]
    done = workspace.fcctl("run", "job", "--on", on, check=100, env=env)
    ((run_id, record),) = workspace.runs().items()
    ended = [(step["id"], step["exit_code"]) for step in record["steps"]]
    assert ended == [("here", 0), ("prints", 0), ("fails", 3)], "a step found the secret among the words of a process"
    log = (workspace.root / "results/runs" / run_id / "steps/prints/log.txt").read_text()
    assert "job *** target ***" in log
    assert log.count("***") >= 4, "in one piece, in two, by a trace and by another program"
    assert "here ***" in (workspace.root / "results/runs" / run_id / "steps/here/log.txt").read_text()
    workspace.fcctl("results", "report", run_id, check=None)
    workspace.fcctl("results", "export", run_id, "-o", "run.tar.zst")
    with zstandard.open(workspace.root / "run.tar.zst") as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, Debian 12's, has none
        tar.extractall(workspace.root / "unpacked")
    assert SECRET not in done.stdout + done.stderr
    assert files_with("target ***", workspace.root / "unpacked")
    assert files_with(SECRET, workspace.root, workspace.home, sshd.home) == []
    assert not [path for path in Path("/dev/shm").glob("fcctl-*") if run_id in path.name]


def test_a_secret_that_is_not_set_stops_the_run_before_it_begins(workspace: Workspace) -> None:
    refused = workspace.fcctl("run", "job", "--on", "box", check=3)
    assert "the secret OF_THE_JOB is not set" in refused.stderr
    assert "export OF_THE_JOB=... in this shell" in refused.stderr
    assert workspace.runs() == {}


def test_a_secret_of_the_keyring(workspace: Workspace, tmp_path: Path) -> None:
    with (workspace.root / "fcctl.toml").open("a") as config:
        config.write('\n[secrets.OF_THE_JOB]\nkeyring = "hub"\n')
    (tmp_path / "lib/keyring").mkdir(parents=True)
    more = {"PYTHONPATH": f"{workspace.env()['PYTHONPATH']}:{tmp_path}/lib"}
    (tmp_path / "lib/keyring/__init__.py").write_text("raise ModuleNotFoundError(name='keyring')\n")
    without = workspace.start("run", "job", "--on", "box", **more)
    _, err = without.communicate()
    assert (without.returncode, f"hint:  {to_install('keyring')}\n" in err) == (3, True), err
    (tmp_path / "lib/keyring/__init__.py").write_text(
        "from keyring import errors\n"
        f"def get_password(service, user): return {SECRET!r} if (service, user) == ('hub', 'OF_THE_JOB') else None\n"
    )
    (tmp_path / "lib/keyring/errors.py").write_text("class KeyringError(Exception): pass\n")
    process = workspace.start("run", "job", "--on", "box", "--dry-run", **more)  # a plan needs the values
    out, err = process.communicate()
    assert (process.returncode, SECRET in out + err) == (0, False), err


def test_a_value_of_env_that_looks_like_a_secret_is_warned_of(workspace: Workspace) -> None:
    workspace.job("open", "env: {HF_TOKEN: hf_0123456789, LEVEL: high}\nsteps: [{id: one, run: 'true'}]\n")
    warned = workspace.fcctl("run", "open", "--on", "box").stderr
    assert "HF_TOKEN in `env` looks like a secret" in warned
    assert 'secrets = ["HF_TOKEN"]' in warned
    assert "LEVEL" not in warned


TUNE = """
tune: sum
parameters: {P: [1, 2, 3]}
build: 'echo "build $OF_THE_JOB"'
check: '[ "$OF_THE_JOB" = "planted-7f3a""9c-value" ] && { [ $P != 3 ] || { echo "refused $OF_THE_JOB"; exit 1; }; }'
bench: 'echo "{\\"us\\": $P.5}" > $TUNE_OUT/b.json'
metric: {reader: metrics, file: $TUNE_OUT/b.json, value: metrics.us}
cases: [a]
held_out: [b]
trials: 3
elites: 1
"""
SEARCH = """
secrets: [OF_THE_JOB]
steps:
  - id: search
    tune: sum
    run: |
      echo "search $OF_THE_JOB"
      "$FCCTL_TUNE_PYTHON" "$FCCTL_TUNE" run "$FCCTL_TUNE_SPEC" --out "$FCCTL_ARTIFACTS/tune" --strategy exhaustive
"""


@pytest.mark.full
def test_a_search_s_trials_have_it_and_write_it_nowhere(workspace: Workspace, sshd: LoopbackSshd) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("distributed", exc_type=ImportError)  # make mac-like: its psutil is a Linux one
    (workspace.root / "tune").mkdir()
    (workspace.root / "tune/sum.yaml").write_text(TUNE)
    workspace.job("search", SEARCH)
    with (workspace.root / "fcctl.toml").open("a") as config:
        config.write(f'\n[targets.box.env]\nFCCTL_PYTHON = "{sys.executable}"\n')
    done = workspace.fcctl("run", "search", "--on", "box", env={"OF_THE_JOB": SECRET})
    (run_id,) = workspace.runs()
    folder = workspace.root / "results/runs" / run_id
    assert "search ***" in (folder / "steps/search/log.txt").read_text()
    trials = (folder / "artifacts/tune/tune_log.csv").read_text()
    assert "refused ***" in trials, trials
    assert [line.split(",")[1] for line in trials.splitlines()].count("wrong") == 1, "the others had the value"
    assert SECRET not in done.stdout + done.stderr
    assert files_with(SECRET, workspace.root, workspace.home, sshd.home) == []
