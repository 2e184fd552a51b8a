"""Where documents go: a folder is made; what is none, or may not be written into, is refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashcore import documents
from flashcore.__main__ import main
from flashcore.errors import UsageError


def test_a_folder_is_made_with_those_above_it_and_may_be_there_already(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    assert documents.folder(str(wanted)) == wanted
    assert documents.folder(str(wanted)) == wanted
    assert wanted.is_dir()


@pytest.mark.parametrize(
    ("name", "cause"), [("file", "a file with this name exists"), ("file/under", "Not a directory")]
)
def test_a_file_is_no_folder(tmp_path: Path, name: str, cause: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError) as refused:
        documents.folder(str(tmp_path / name))
    assert refused.value.cause == cause
    assert str(tmp_path / name) in refused.value.message
    assert "--out" in str(refused.value.hint)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_may_not_be_written_into_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    with pytest.raises(UsageError) as refused:
        documents.folder(str(tmp_path))
    assert refused.value.cause == "this user may not write to it"


@pytest.mark.parametrize("command", [["tune", "flagship", "--build"], ["build", "baseline"]])
def test_a_build_whose_documents_have_no_place_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    def compiled(*_: object, **__: object) -> None:
        pytest.fail("a compiler was started")

    monkeypatch.setattr("flashcore.toolchain.run", compiled)
    monkeypatch.setenv("FLASHCORE_CACHE", str(tmp_path / "cache"))
    taken = tmp_path / "taken"
    taken.write_text("")
    assert main([*command, "--out", str(taken)]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[0] == f"error: documents cannot be written to {taken}"
    assert "cause: a file with this name exists" in said
    assert "hint: " in said
