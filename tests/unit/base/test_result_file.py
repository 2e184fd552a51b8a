"""A file of a run's folder is read only if it is what it has to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.base import safe_paths


def test_the_end_of_a_file_and_what_was_cut(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"0123456789")
    assert safe_paths.tail(tmp_path, "log.txt", 4) == safe_paths.Tail(b"6789", 6)
    assert safe_paths.tail(tmp_path, "log.txt", 40) == safe_paths.Tail(b"0123456789", 0)


def test_neither_links_nor_pipes_nor_folders_nor_what_is_outside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "steps").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (run / "link").symlink_to(tmp_path / "secret")
    (run / "up").symlink_to(tmp_path)
    os.mkfifo(run / "pipe")
    for name in ("link", "up/secret", "pipe", "steps", "../secret", "absent", ""):
        assert safe_paths.tail(run, name, 100) is None, name
        with pytest.raises((OSError, ValueError)):
            safe_paths.open_result(run, name)
