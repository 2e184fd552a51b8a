from __future__ import annotations

from pathlib import Path

import pytest

from fcctl_remote.base.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The folder of a host program."""
    made = Layout(str(tmp_path / "root"))
    made.ensure()
    return made
