"""The table of winners: what its command does wrong is said, and nothing of it goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.base.errors import ConfigError, ConflictError
from orchestrator.tune.adopt import AdoptTable
from orchestrator.tune.adoption import Adoption
from orchestrator.tune.search_file import Adopt
from tests.support.living import is_running
from tests.support.waiting import wait_for

TAKEN = Adoption("s", {}, ())


def table(folder: Path, write: str) -> AdoptTable:
    return AdoptTable(folder, Adopt("t.h", write))


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.h").write_bytes(b"a\r\nb\r\n")
    one = table(tmp_path, r"""cat > given; printf 'a\r\nc\r\n'""")
    before = one.read()
    assert (before, one.with_rows(before, TAKEN)) == ("a\r\nb\r\n", "a\r\nc\r\n")
    assert r"a\r\nb\r\n" in (tmp_path / "given").read_text()
    one.write("a\r\nc\r\n", instead_of=before)
    assert (tmp_path / "t.h").read_bytes() == b"a\r\nc\r\n"


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        ("echo new; echo because >&2; exit 3", "exit code 3\nbecause"),
        ("true", "it printed nothing"),
        (r"printf '\377'", "can't decode"),
    ],
)
def test_a_command_that_fails(tmp_path: Path, write: str, cause: str) -> None:
    with pytest.raises(ConfigError) as failed:
        table(tmp_path, write).with_rows("", TAKEN)
    assert cause in str(failed.value.cause)
    assert failed.value.hint == f"run it by hand: {write}"


def test_nothing_of_a_command_that_takes_too_long_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"

    def late(process: subprocess.Popen[bytes], *_: object) -> None:
        wait_for(started.exists)
        raise subprocess.TimeoutExpired(process.args, 120)

    monkeypatch.setattr(subprocess.Popen, "communicate", late)
    with pytest.raises(ConfigError, match="failed") as failed:
        table(tmp_path, "{ echo $$; sleep 600 & echo $!; } > pids; mv pids started; wait").with_rows("", TAKEN)
    assert "timed out" in str(failed.value.cause)
    pids = [int(word) for word in started.read_text().split()]
    assert len(pids) == 2
    wait_for(lambda: not any(map(is_running, pids)))


def test_what_is_no_text_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "t.h").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"cannot read t\.h") as failed:
        table(tmp_path, "").read()
    assert "move this file away" in str(failed.value.hint)


def test_what_somebody_changed_while_we_asked_is_not_written_over(tmp_path: Path) -> None:
    one = table(tmp_path, "")
    one.write("a", instead_of="")
    (tmp_path / "t.h").write_text("theirs")
    with pytest.raises(ConflictError, match=r"t\.h changed after"):
        one.write("b", instead_of="a")
    assert one.read() == "theirs"
