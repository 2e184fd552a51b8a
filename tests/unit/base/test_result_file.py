"""A file of a run's folder is read only if it is what it has to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.base import result_file


def test_the_end_of_a_file_and_what_was_cut(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"0123456789")
    assert result_file.tail(tmp_path, "log.txt", 4) == result_file.Tail(b"6789", 6)
    assert result_file.tail(tmp_path, "log.txt", 40) == result_file.Tail(b"0123456789", 0)


def test_neither_links_nor_pipes_nor_folders_nor_what_is_outside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "steps").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (run / "link").symlink_to(tmp_path / "secret")
    (run / "up").symlink_to(tmp_path)
    os.mkfifo(run / "pipe")
    for name in ("link", "up/secret", "pipe", "steps", "../secret", "absent", ""):
        assert result_file.tail(run, name, 100) is None, name
        with pytest.raises((OSError, ValueError)):
            result_file.opened(run, name)
