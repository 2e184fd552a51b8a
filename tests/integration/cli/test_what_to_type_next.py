"""Small mistakes at the command line: each answer says what is wrong and what to type next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import run_fcctl

CONFIG = '[project]\nname = "w"\n[schedules.nightly]\ncron = "0 2 * * *"\njob = "one"\non = "local"\nbudget_usd = 1\n'
JOB = "job: one\nsteps:\n  - {id: build, run: make}\n  - {id: check, run: make}\n"


SEARCHING = "job: two\nenv: {KIND: one}\nsteps:\n  - {id: build, run: make}\n  - {id: search, run: make, tune: sum}\n"
SEARCH = """\
tune: sum
env: {KIND: one}
variants: {KIND: [one, other]}
parameters: {P: [1, 2]}
check: 'true'
bench: 'true'
metric: {reader: metrics, file: b.json, value: metrics.us}
"""
NO_VARIANT = ["unknown variant", "tune/sum.yaml has the variants one, other", "did you mean --set KIND=other?"]


@pytest.fixture
def folder(tmp_path: Path, private_home: Path) -> Path:
    (tmp_path / "w/jobs").mkdir(parents=True)
    (tmp_path / "w/fcctl.toml").write_text(CONFIG)
    (tmp_path / "w/jobs/one.yaml").write_text(JOB)
    (tmp_path / "w/jobs/two.yaml").write_text(SEARCHING)
    (tmp_path / "w/tune").mkdir()
    (tmp_path / "w/tune/sum.yaml").write_text(SEARCH)
    return tmp_path / "w"


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("schedule add x --cron @daily --job one --timezone Mars/Base", 2, ["'Mars/Base'", "--timezone Europe/Berlin"]),
        ("schedule rm nope", 7, ["unknown schedule 'nope'", "known: nightly", "fcctl schedule ls"]),
        ("schedule rm nightli", 7, ["did you mean 'nightly'?"]),
        ("schedule ls --firings", 0, ["no firings yet"]),
        ("results prune --older-than 90d --dry-run", 0, ["no run to delete\n"]),
        ("cancel --all", 0, ["no active runs"]),
        ("hosts ssh local", 3, ["this computer", "hint:", "fcctl hosts ls"]),
        ("results export all -o x.foo", 2, ["'.foo'", "--format json|"]),
        ("results report all -o x.foo", 2, ["'.foo'", "--html, --md, --pdf"]),
        ("run one --on local --budget much", 2, ["'much' is not a number"]),
        ("run one --on local --steps tset", 2, ["no step 'tset'", "the steps are build, check"]),
        ("run two --on local --set KIND=othr --dry-run", 2, NO_VARIANT),
        ("run two --on local --set KIND=othr", 2, NO_VARIANT),
        ("tune sum --on local --set KIND=othr", 2, NO_VARIANT),
        ("schedule add x --cron @daily --job two --on local --set KIND=othr", 2, NO_VARIANT),
        ("run two --on local --set KIND=othr --steps build --dry-run", 0, []),
        ("run", 2, ["missing argument 'JOB'", "fcctl jobs ls"]),
        ("cost plan", 2, ["missing argument 'JOB'", "fcctl jobs ls"]),
        ("jobs validate one.yaml", 0, ["1 of 1 jobs are valid"]),
        ("jobs validate onee.yaml", 7, ["onee.yaml does not exist", "fcctl jobs ls"]),
        ("cost plan one --on ssh:gpu-box", 0, ["no price: usd_per_hour of the target sets one", "20 min 00 s\n"]),
        ("hosts ssh", 2, ["missing argument 'TARGET'", "fcctl hosts ls"]),
        ("results export", 2, ["missing argument 'RUN...'", "fcctl results ls"]),
        ("run one --on local --set N=1", 2, ["no env variable of this name", "in the job's file: env: {N: VALUE}"]),
        ("results tag x", 7, ["unknown tag 'x'", "fcctl results tag NAME RUN"]),
        ("results tag --delete x", 7, ["unknown tag 'x'", "fcctl results tag NAME RUN"]),
        ("session stop", 7, ["no session is open", "fcctl hosts audit"]),
        ("session stop nope", 7, ["no open session 'nope'", "hint:"]),
        ("session stop --on local", 7, ["no session of target 'local' is open"]),
        ("hosts ssh-config local", 3, ["so it needs no entry", "fcctl hosts ls"]),
        ("-C /nowhere/here ps", 7, ["/nowhere/here is not a folder", "hint:"]),
        ("results history --benchmark nope", 7, ["no run has a measurement yet", "fcctl help jobs"]),
    ],
)  # fmt: skip
def test_what_why_and_what_next(folder: Path, line: str, code: int, says: list[str]) -> None:
    done = run_fcctl(*line.split(), cwd=folder)
    assert done.code == code, done.err
    assert [said for said in says if said not in done.out + done.err] == []
    assert not (folder / "x.foo").exists()


def test_a_job_is_named_by_its_path_in_another_workspace(folder: Path) -> None:
    for name in ("jobs/one.yaml", "one.yaml"):
        done = run_fcctl("-C", str(folder), "jobs", "validate", name, cwd=folder.parent)
        assert done.code == 0, done.err


def test_a_run_that_never_reached_its_machine_keeps_the_cure(folder: Path) -> None:
    done = run_fcctl("run", "one", "--on", "ssh:127.0.0.1:1", cwd=folder)
    assert done.code == 6, done.err
    cure = next(line for line in done.err.splitlines() if line.startswith("hint:")).removeprefix("hint:").strip()
    shown = run_fcctl("results", "show", "last", "--json", cwd=folder).json
    assert (shown["run"]["status"], shown["run"]["hint"]) == ("error", cure)


def test_a_second_target_does_not_move_runs_to_this_computer_without_a_word(folder: Path) -> None:
    said = "the job runs on this computer (target local); fcctl.toml also has box and l4: choose one with --on"
    targets = '[targets.box]\nkind = "ssh"\nhost = "box"\n[targets.l4]\nkind = "ssh"\nhost = "l4"\n'
    (folder / "fcctl.toml").write_text(CONFIG + targets)
    assert said in run_fcctl("run", "one", "--dry-run", cwd=folder).err
    for line in ("run one --dry-run --on local", "run one --dry-run --json"):
        assert said not in run_fcctl(*line.split(), cwd=folder).err
