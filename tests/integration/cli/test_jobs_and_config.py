"""``fcctl jobs`` and ``config``, and jobs as docs/gates.md has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Fcctl, source_environment
from tests.support.forked import FCCTL


def test_jobs_ls(fcctl: Fcctl, workspace: Path) -> None:
    (workspace / "jobs" / "broken.yaml").write_text("job: broken\nstepz: []\n")
    done = fcctl("jobs", "ls", cwd=workspace)
    assert done.code == 0
    assert "Says it" in done.out
    assert "preflight" in done.out
    assert "jobs/broken.yaml:2: unknown key 'stepz'" in done.out
    jobs = {job["job"]: job for job in fcctl("jobs", "ls", "--json", cwd=workspace).json["jobs"]}
    assert jobs["preflight"]["built_in"]
    assert jobs["hello"] == {
        "job": "hello", "title": "Says it", "steps": 1, "built_in": False, "problem": None, "at_most": "10m",
    }  # fmt: skip
    assert jobs["broken"]["problem"]


def test_jobs_of_a_folder_below_and_of_another(fcctl: Fcctl, workspace: Path, tmp_path: Path) -> None:
    (workspace / "src" / "deep").mkdir(parents=True)
    assert "hello" in fcctl("jobs", "ls", cwd=workspace / "src" / "deep").out
    assert "hello" in fcctl("-C", str(workspace), "jobs", "ls", cwd=Path("/")).out
    assert "hello" in fcctl("jobs", "ls", cwd=Path("/"), env={"FCCTL_WORKSPACE": str(workspace)}).out


def test_the_current_folder_was_deleted(fcctl: Fcctl, workspace: Path, tmp_path: Path) -> None:
    """Git deletes it when it goes to a commit that lacks it."""
    (tmp_path / "gone").mkdir()
    script = 'rmdir ../gone; "$@"'
    for words, code in ((["ps"], 7), (["-C", "x", "jobs", "ls"], 7), (["-C", str(workspace), "jobs", "ls"], 0)):
        done = subprocess.run(
            ["sh", "-c", script, "sh", *FCCTL, *words], cwd=tmp_path / "gone", env=source_environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        (tmp_path / "gone").mkdir()
        assert done.returncode == code, done.stderr
        assert done.stderr == "" or "error: the current folder was deleted" in done.stderr
    assert "no user has that name" in fcctl("-C", "~nobody-has-this-name", "ps", cwd=tmp_path).err


def test_a_strangers_job_cannot_drive_the_terminal(fcctl: Fcctl, workspace: Path) -> None:
    """It is looked at before it is run."""
    evil = r"\e]0;owned\a\e[31m\u202eevil\x9b2J"
    (workspace / "jobs" / "evil.yaml").write_text(
        f'job: evil\ntitle: "T{evil}"\nenv: {{A: "{evil}"}}\nsteps:\n  - id: s\n    run: "echo {evil}"\n    gates:\n'
        f'      - {{expr: \'host.name == "x"\', hint: "{evil}"}}\n'
    )
    (workspace / "jobs" / "wrong.yaml").write_text(f'job: wrong\nsteps: "{evil}"\n"k{evil}": 1\n')
    for words in (
        ["jobs", "ls"], ["jobs", "show", "evil"], ["jobs", "validate"], ["run", "evil", "--on", "local", "--dry-run"],
        ["cost", "plan", "evil", "--on", "local"], ["config", "show"],
    ):  # fmt: skip
        done = fcctl(*words, cwd=workspace)
        printed = done.out + done.err
        assert not set("\x1b\x07\x9b\u202e") & set(printed), (words, printed)
        assert "evil" in printed or words[0] == "config"


@pytest.mark.parametrize("name", ["fcctl.toml", "jobs/huge.yaml", "tune/huge.yaml"])
def test_a_strangers_huge_file_is_named_not_read(fcctl: Fcctl, workspace: Path, name: str) -> None:
    """A few kilobytes of a clone become gigabytes."""
    (workspace / name).parent.mkdir(exist_ok=True)
    with (workspace / name).open("ab") as file:
        file.truncate(1 << 40)
    done = fcctl("jobs", "validate", cwd=workspace)
    assert done.code == 3
    assert name in done.err + done.out
    assert "it has more than 4 MiB" in done.err + done.out


def test_jobs_show(fcctl: Fcctl, workspace: Path) -> None:
    done = fcctl("jobs", "show", "hello", cwd=workspace)
    assert done.code == 0
    assert "$ echo hello" in done.out
    assert fcctl("jobs", "show", "hello", "--json", cwd=workspace).json["worst_case_minutes"] == 10
    unknown = fcctl("jobs", "show", "helo", cwd=workspace)
    assert unknown.code == 7
    assert "did you mean 'hello'? (known: hello, preflight)" in unknown.err
    for name in ("../hello", "/etc/passwd", ".", "x\x1b[31m"):
        outside = fcctl("jobs", "show", name, cwd=workspace)
        assert outside.code == 7
        assert "\x1b" not in outside.err


def test_jobs_validate(fcctl: Fcctl, workspace: Path) -> None:
    assert fcctl("jobs", "validate", cwd=workspace).code == 0
    broken = workspace / "jobs" / "broken.yaml"
    broken.write_text("job: broken\nuses: [helo]\nsteps:\n  - {id: a}\n  - {id: b, run: x, gates: [1 +]}\n")
    done = fcctl("jobs", "validate", cwd=workspace)
    assert done.code == 3
    assert [line.split(": ")[0] for line in done.out.splitlines()] == ["jobs/broken.yaml:4", "jobs/broken.yaml:5"]
    broken.write_text("job: broken\nuses: [helo]\n")
    done = fcctl("jobs", "validate", "jobs/broken.yaml", cwd=workspace)
    assert done.code == 3
    assert done.out == (
        "jobs/broken.yaml:2: unknown job 'helo' in 'uses' (did you mean 'hello'? (known: broken, hello, preflight))\n"
    )
    found = fcctl("jobs", "validate", "--json", "broken", "hello", cwd=workspace)
    assert (found.code, found.json["valid"], len(found.json["files"])) == (3, False, 2)
    assert found.json["problems"][0]["where"] == "jobs/broken.yaml:2"
    assert fcctl("jobs", "validate", "jobs/none.yaml", cwd=workspace).code == 7


def test_a_job_is_named_by_its_file_too(fcctl: Fcctl, workspace: Path) -> None:
    plans = [fcctl("run", name, "--on", "local", "--dry-run", "--json", cwd=workspace).json for name in (
        "hello", "jobs/hello.yaml", "hello.yaml", str(workspace / "jobs" / "hello.yaml"))]  # fmt: skip
    assert [plan["plan"]["job"] for plan in plans] == ["hello"] * 4
    (workspace / "mine.yaml").write_text("job: mine\nsteps: [{id: a, run: 'true'}]\n")
    outside = fcctl("run", "mine.yaml", "--on", "local", cwd=workspace)
    assert outside.code == 7
    assert "hint:  move it: mv mine.yaml jobs/mine.yaml" in outside.err
    assert "no job named 'none'" in fcctl("run", "jobs/none.yaml", "--on", "local", cwd=workspace).err


def test_searches_are_checked_as_jobs_are(fcctl: Fcctl, workspace: Path) -> None:
    (workspace / "tune").mkdir()
    wrong = workspace / "tune" / "saxpy.yaml"
    metric = "metric: {reader: metrics, file: m.json, value: metrics.us}"
    wrong.write_text(f"tune: saxpy\nparameters: {{A: [1, 2]}}\ncheck: x\nbench: x\n{metric}\nbuidl: make\n")
    job = workspace / "jobs" / "search.yaml"
    job.write_text("job: search\nsteps: [{id: a, tune: saxpy, run: 'true'}]\n")
    for named in ((), ("tune/saxpy.yaml",), ("search",)):
        done = fcctl("jobs", "validate", *named, cwd=workspace)
        assert done.code == 3
        assert "tune/saxpy.yaml:6: buidl: unknown key" in done.out
        assert len(done.out.splitlines()) == len(set(done.out.splitlines()))
    wrong.write_text(wrong.read_text().replace("buidl", "build"))
    done = fcctl("jobs", "validate", cwd=workspace)
    assert done.code == 0, done.out
    assert "4 of 4 jobs and searches are valid" in done.err
    wrong.rename(wrong.with_name("other.yaml"))
    done = fcctl("jobs", "validate", "tune/other.yaml", cwd=workspace)
    assert (done.code, "the name in the file is 'saxpy'" in done.out) == (3, True)


def test_files_that_are_no_text(fcctl: Fcctl, workspace: Path) -> None:
    (workspace / "jobs" / "bytes.yaml").write_bytes(b"job: bytes\n# \xff\n")
    (workspace / "jobs" / "folder.yaml").mkdir()
    done = fcctl("jobs", "validate", "bytes", cwd=workspace)
    assert (done.code, done.out) == (3, "jobs/bytes.yaml:2: not UTF-8 text\n")
    (workspace / "fcctl.toml").write_bytes(b"\n# \xff\n")
    done = fcctl("jobs", "ls", cwd=workspace)
    assert done.code == 3
    assert "fcctl.toml:2: not UTF-8 text" in done.err


def test_a_name_that_leads_to_no_file_hides_no_other_job(fcctl: Fcctl, workspace: Path) -> None:
    (workspace / "tune").mkdir()
    for folder in ("jobs", "tune"):
        (workspace / folder / "gone.yaml").symlink_to("nowhere")
        os.mkfifo(workspace / folder / "pipe.yaml")
    assert "hello" in fcctl("jobs", "ls", cwd=workspace).out
    assert fcctl("jobs", "validate", cwd=workspace).code == 0


def test_config_show_and_get(fcctl: Fcctl, workspace: Path, private_home: Path) -> None:
    folder = "Library/Application Support" if sys.platform == "darwin" else ".config"
    user = private_home / folder / "fcctl/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('\n[targets.mine]\nkind = "ssh"\nhost = "my-box"\n[budget]\nper_run_usd = 1\nper_day_usd = 9\n')
    env = {"FCCTL_BUDGET_PER_MONTH_USD": "50"}
    done = fcctl("config", "show", "--origin", cwd=workspace, env=env)
    origins = dict(line.split("  # ") for line in done.out.splitlines())
    found = {key.strip(): origin for key, origin in origins.items()}
    assert found['project.name = "demo"'] == "fcctl.toml:2"
    assert found["budget.per_run_usd = 2.0"] == "fcctl.toml:4"
    assert found["budget.per_day_usd = 9.0"] == f"{user}:7"
    assert found["budget.per_month_usd = 50.0"] == "FCCTL_BUDGET_PER_MONTH_USD"
    assert found['targets.mine.host = "my-box"'] == f"{user}:4"
    assert found['project.jobs = "jobs"'] == "default"
    shown = fcctl("config", "show", "--json", cwd=workspace).json["values"]
    assert shown["budget.per_run_usd"] == {"value": 2.0, "origin": "fcctl.toml:4"}
    assert fcctl("config", "get", "targets.mine.host", cwd=workspace).out == "my-box\n"
    unknown = fcctl("config", "get", "budget.per_run_us", cwd=workspace)
    assert (unknown.code, unknown.err.splitlines()[1]) == (7, "hint:  did you mean 'budget.per_run_usd'?")


def test_config_path(fcctl: Fcctl, workspace: Path, private_home: Path) -> None:
    folder = "Library/Application Support" if sys.platform == "darwin" else ".config"
    user = private_home / folder / "fcctl/config.toml"
    assert fcctl("config", "path", cwd=workspace).out == f"{workspace / 'fcctl.toml'}\n{user}\n"
    assert fcctl("config", "path", cwd=Path("/")).out == f"{user}\n"
    elsewhere = {"XDG_CONFIG_HOME": str(workspace)}
    assert fcctl("config", "path", "-q", cwd=Path("/"), env=elsewhere).out == f"{workspace}/fcctl/config.toml\n"


def test_outside_any_workspace(fcctl: Fcctl, tmp_path: Path) -> None:
    done = fcctl("config", "show", cwd=tmp_path)
    assert done.code == 7
    assert "hint:  fcctl init" in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses such names")
def test_a_folder_whose_name_is_no_text(fcctl: Fcctl, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"not \xff utf-8")
    folder.mkdir()
    (folder / "fcctl.toml").touch()
    done = fcctl("jobs", "ls", cwd=folder)
    assert done.code == 3
    assert "the workspace's path is not valid UTF-8" in done.err
    assert r"\udcff" in done.err


PLANNED = """\
job: planned
env: {BLOCK: 256, NOTE: a}
steps:
  - id: bench
    optional: unavailable
    run: echo
    gates:
      - {expr: metrics.metrics.us < 5, when: '"H100" in host.gpu.name'}
  - {id: more, run: echo, optional: true}
"""


def test_a_dry_run_tells_settings_conditions_and_what_stays_here(fcctl: Fcctl, workspace: Path) -> None:
    (workspace / "jobs" / "planned.yaml").write_text(PLANNED)
    (workspace / "data").symlink_to("/etc")
    with (workspace / "weights.bin").open("wb") as file:
        file.truncate(60_000_000)
    large = "weights.bin has 60 MB; to leave it out, add it to .gitignore\n"
    shown = fcctl("run", "planned", "--on", "local", "--set", "BLOCK=512", "--dry-run", cwd=workspace).out
    assert (
        "\nnot sent    data: a link to a path outside the workspace\nlarge       "
        + large
        + "env         BLOCK=512  NOTE=a\n"
        in shown
    )
    bench, gate = (line.rstrip() for line in shown.splitlines() if line.startswith("bench"))
    assert bench.endswith("(if available)")
    assert gate.endswith('metrics.metrics.us < 5  when "H100" in host.gpu.name')
    assert "10 min 00 s (optional)" in shown
    assert large in fcctl("run", "planned", "--on", "local", cwd=workspace).err
    assert large not in fcctl("run", "planned", "--on", "local", cwd=workspace).err  # it is there


@pytest.mark.parametrize("folder", ["out/all", "{workspace}/out"])
def test_results_are_not_sent_wherever_they_are_kept(fcctl: Fcctl, workspace: Path, folder: str) -> None:
    out = workspace / folder.format(workspace=workspace)
    for name in ("runs/r/run.json", "index.sqlite-wal", "tags.toml", "notes.md"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
    env = {"FCCTL_PROJECT_RESULTS": folder.format(workspace=workspace)}
    before = fcctl("run", "hello", "--on", "local", "--dry-run", "--json", cwd=workspace, env=env).json["source"][
        "files"
    ]
    (out / "notes.md").unlink()
    after = fcctl("run", "hello", "--on", "local", "--dry-run", "--json", cwd=workspace, env=env).json["source"][
        "files"
    ]
    assert (before - after, after) == (1, 2)


ROOT = Path(__file__).parents[3]
JOB = """\
job: own
steps:
  - id: say
    run: for i in 1 2 3 4 5; do cp "doc$i.json" "$FCCTL_OUT/"; done
    gates:
      - benchmark.benchmarks[name="softmax"].stats.p50 < 13
      - correctness.summary.failed == 0
      - max(build.kernels[*].registers) <= 40
      - profile.kernels[0].metrics.dram_throughput_pct > 80
      - metrics.metrics.gbps > 400
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_what_the_page_shows_is_taken(fcctl: Fcctl, workspace: Path) -> None:
    page = (ROOT / "docs" / "gates.md").read_text()
    lines = re.findall(r'^\{"kind": .+\}$', page, flags=re.MULTILINE)
    assert len(lines) == 5
    for number, line in enumerate(lines, start=1):
        (workspace / f"doc{number}.json").write_text(line)
    (workspace / "jobs" / "own.yaml").write_text(JOB)
    for _ in range(2):
        done = fcctl("run", "own", "--on", "local", cwd=workspace)
        assert done.code == 0, done.err
        assert "Gates  5 of 5 passed" in done.out
        for said in ("softmax", "✓ 1/1 cases passed", "gbps"):
            assert said in done.out
    report = fcctl("results", "compare", "last~1", "--json", cwd=workspace).json
    [row] = report["benchmarks"]
    assert row["verdict"] in ("same", "inconclusive"), row
