"""What fcctl does on macOS alone, with stand-ins for its programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from orchestrator.cli import launching
from orchestrator.views.tables.run import open_commands
from tests.support.waiting import wait_for


@pytest.mark.parametrize(("platform", "called"), [("darwin", True), ("linux", False)])
def test_the_computer_stays_awake_while_a_run_is_followed(
    platform: str, called: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "caffeinate"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/words\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(launching, "_awake", processes := [])
    launching.keep_awake()
    assert bool(processes) == called
    if called:
        wait_for((tmp_path / "words").is_file)
        assert (tmp_path / "words").read_text().split() == ["-i", "-w", str(os.getpid())]
        processes[0].wait()


def test_a_report_and_profiles_have_the_command_that_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run/artifacts/report.html", "run/steps/p/out/a b.ncu-rep", "run/steps/p/out/\x1b.ncu-rep"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert open_commands(tmp_path / "run") == [
        "open run/artifacts/report.html",
        "open -a \"NVIDIA Nsight Compute\" 'run/steps/p/out/a b.ncu-rep'",
    ]
