from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base import log_file as logging_setup
from tests.support.command import source_environment
from tests.support.small_disk import largest_file

LOG = logging.getLogger("orchestrator.test")


@pytest.fixture
def log(private_home: Path) -> Iterator[Path]:
    path = logging_setup.start()
    assert path is not None
    yield path
    logging_setup.stop()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_json_object_a_line(log: Path) -> None:
    LOG.info("two\nlines %d", 7)
    try:
        raise ValueError("odd")
    except ValueError:
        LOG.exception("failed")
    first, second = lines(log)
    assert first["message"] == "two\nlines 7"
    assert (first["level"], first["logger"]) == ("info", "orchestrator.test")
    assert "ValueError: odd" in str(second["traceback"])


def test_only_the_owner_reads_it(log: Path) -> None:
    LOG.info("x")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        "environment holds hunter2-hunter2",
        "Authorization: Bearer hunter2-hunter2",
        "password=hunter2-hunter2 ok",
        '{"api_key": "hunter2-hunter2"}',
        "GH_TOKEN=hunter2-hunter2",
        "https://me:hunter2-hunter2@host/",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2-hunter2\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_secrets_are_left_out(log: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "hunter2-hunter2" if text.startswith("environment") else "something-else")
    LOG.error("%s", text)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        LOG.exception("again")
    assert "hunter2" not in log.read_text()
    assert "[redacted]" in log.read_text()


def test_it_rotates_and_keeps_a_few(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 2000)
    for number in range(100):
        LOG.info("%04d %s", number, "x" * 200)
    kept = sorted(path.name for path in log.parent.iterdir())
    assert kept == ["fcctl.log", "fcctl.log.1", "fcctl.log.2"]
    assert all(path.stat().st_size < 3000 for path in log.parent.iterdir())
    newest = [str(line["message"])[:4] for path in (log,) for line in lines(path)]
    assert newest[-1] == "0099"


def test_a_folder_that_cannot_be_written_is_no_failure(private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = private_home / "file"
    blocked.write_text("")
    monkeypatch.setattr(logging_setup, "log_file", lambda: blocked / "sub" / "fcctl.log")
    assert logging_setup.start() is None


def test_a_full_disk_costs_lines_and_nothing_else(log: Path) -> None:
    LOG.info("before")
    size = log.stat().st_size
    with largest_file(size + 20):
        for number in range(3):
            LOG.info("full %d", number)
    LOG.info("after")
    with largest_file(0):
        logging_setup.stop()
    torn, *whole = log.read_text().splitlines()[1:]
    assert len(torn) == 20, "as much as there was room for"
    assert [json.loads(line)["message"] for line in whole if line] == ["after"]


def test_a_log_that_cannot_be_renamed_does_not_grow_for_ever(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 2000)
    (log.parent / "fcctl.log.1").mkdir()
    for number in range(100):
        LOG.info("%04d %s", number, "x" * 200)
    assert 4000 <= log.stat().st_size < 5000


def test_a_log_that_another_process_renamed_and_filled_again_gets_the_line(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both happen while this process waits for a processor: the file is away when it looks, and large when it opens."""
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 2000)
    LOG.info("large %s", "x" * 2000)
    log.rename(log.with_name("fcctl.log.1"))
    opened = logging_setup._open

    def late(path: Path) -> int:
        path.write_text("{}\n" * 2000)
        return opened(path)

    monkeypatch.setattr(logging_setup, "_open", late)
    LOG.info("not lost")
    assert json.loads(log.read_text().splitlines()[-1])["message"] == "not lost"


#: Writes 300 lines, and more until there are eleven files: while one process renames, however long, the others go on.
WRITER = """
import itertools, logging, os, sys
from orchestrator.base import log_file
log_file.MAX_BYTES, log_file.KEPT = 3000, 1000
assert log_file.start()
folder = log_file.log_file().parent
sys.stdin.readline()
for number in itertools.count():
    if number >= 300 and len(os.listdir(folder)) > 10:
        break
    logging.getLogger("orchestrator.test").info("%s %06d %s", sys.argv[1], number, "x" * 100)
log_file.stop()
print(number)
"""


def test_processes_that_rotate_at_once_lose_no_line(private_home: Path) -> None:
    env = source_environment({"HOME": str(private_home)})
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, own], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for own in "abc"
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    said = [writer.communicate() for writer in writers]
    assert [errors for _, errors in said] == [b""] * 3
    assert [writer.returncode for writer in writers] == [0] * 3
    folder = logging_setup.log_file().parent
    found = sorted(str(line["message"])[:8] for path in folder.iterdir() for line in lines(path))
    wrote = zip("abc", (int(told) for told, _ in said), strict=True)
    assert found == [f"{own} {number:06d}" for own, count in wrote for number in range(count)]
    assert len(list(folder.iterdir())) > 10
