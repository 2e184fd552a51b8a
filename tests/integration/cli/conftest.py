from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Fcctl, run_fcctl


@pytest.fixture
def fcctl(private_home: Path) -> Fcctl:
    """``fcctl`` as a process, in a home of its own."""
    return run_fcctl


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one job."""
    (tmp_path / "fcctl.toml").write_text('[project]\nname = "demo"\n[budget]\nper_run_usd = 2.0\n')
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "hello.yaml").write_text(
        "job: hello\ntitle: Says it\nsteps:\n  - {id: say, run: echo hello}\n"
    )
    return tmp_path
