"""What compute-sanitizer's output means, and how it is called."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from flashcore import sanitize
from tests.support.waiting import wait_for

CLEAN = "========= COMPUTE-SANITIZER\n24 launches\n========= ERROR SUMMARY: 0 errors\n"
RACES = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at flashcore_wmma(flashcore_args)+0x10 in wmma.cu:88
=========     and Read access at flashcore_wmma(flashcore_args)+0x90 in wmma.cu:92 [64 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at flashcore_wmma(flashcore_args)+0x10 in wmma.cu:88
=========     and Write access at flashcore_wmma(flashcore_args)+0x90 in wmma.cu:92 [64 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)
"""
BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at flashcore_fused(flashcore_args)+0x40 in fused.cu:120
========= ERROR SUMMARY: 3 errors
"""


@pytest.mark.parametrize(
    ("code", "output", "status", "errors", "said"),
    [
        (0, CLEAN, "passed", 0, None),
        (0, CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
         "passed", 0, None),
        (42, RACES, "failed", 1, "Race reported between Write access"),
        (0, WARNED, "failed", 2, "2 of 2 are warnings, which also fail: Warning: Race reported"),
        (42, BOUNDS, "failed", 3, "Invalid __global__ read of size 16"),
        (1, "error: fused failed to launch\n" + CLEAN, "failed", 0, "exit code 1"),
        (1, "========= Error: Device not supported\n", "unavailable", None, "Device not supported"),
        (-1, "stopped after 240 s", "unavailable", None, "stopped after 240 s"),
        (0, "", "unavailable", None, "no output"),
    ],
)  # fmt: skip
def test_only_a_clean_summary_is_a_pass(code: int, output: str, status: str, errors: int | None, said: str) -> None:
    found = sanitize.verdict(code, output)
    assert (found["status"], found["errors"]) == (status, errors)
    assert said is None or said in found["message"]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compute-sanitizer that finds races and nothing else, and notes how it was called."""
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING $*" >> {tmp_path}/calls\n'
        f"if [ $2 = racecheck ]; then cat {tmp_path}/races; exit 42; fi\ncat {tmp_path}/clean\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "races").write_text(RACES)
    (tmp_path / "clean").write_text(CLEAN)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_both_tools_watch_our_kernels_only_with_memory_of_their_own(tool: Path) -> None:
    found = sanitize.run(["fused:TILE_M=64"], tool / "sanitizer.log")
    assert [(p["tool"], p["status"]) for p in found] == [("memcheck", "passed"), ("racecheck", "failed")]
    calls = (tool / "calls").read_text().splitlines()
    assert len(calls) == 2
    for call in calls:
        assert call.startswith("1 --tool ")
        assert "--kernel-name kns=flashcore_" in call
        assert call.endswith("-m flashcore check fused:TILE_M=64 --launches")
    assert "wmma.cu:88" in (tool / "sanitizer.log").read_text()


def test_a_program_that_hangs_is_stopped_with_what_it_watches(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tool / "bin" / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\nsleep 300 & echo $! > {tool}/watched\nwait\n")
    monkeypatch.setattr(sanitize, "TIMEOUT_S", 0.5)
    found = sanitize.run(["fused"], tool / "sanitizer.log")
    assert {p["status"] for p in found} == {"unavailable"}
    assert "stopped after 0.5 s" in found[0]["message"]
    watched = Path(f"/proc/{(tool / 'watched').read_text().strip()}/stat")
    wait_for(lambda: not _alive(watched))  # a kill takes effect when the process is scheduled next


def _alive(stat_file: Path) -> bool:
    try:
        return stat_file.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_the_tool_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = sanitize.run(["fused"], tmp_path / "log")
    assert {p["status"] for p in found} == {"unavailable"}
    assert {p["errors"] for p in found} == {None}
