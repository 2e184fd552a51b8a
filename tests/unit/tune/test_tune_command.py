"""What the command refuses before anything is searched."""

from __future__ import annotations

import errno
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_tune.engine import command
from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import TrialRecord
from fcctl_tune.workers import member
from fcctl_tune.workers.hosts import Device, Host


def test_a_search_goes_on_only_with_the_gpu_that_it_was_begun_on(tmp_path: Path) -> None:
    run = command.Run(Namespace(out=str(tmp_path), work=str(tmp_path), full=False, seed=0))
    known = [TrialRecord(0, {"P": 1}, "complete", value=1.0, gpu="NVIDIA L4"), TrialRecord(1, {"P": 2}, "build_failed")]
    study: Any = SimpleNamespace(records=lambda: known)
    cluster: Any = SimpleNamespace(hosts=[Host("b", 1, (Device("gpu-0", "NVIDIA T4"),))])
    trial_spec: Any = None
    with pytest.raises(
        TuneError, match="started on NVIDIA L4, but this machine has NVIDIA T4: their times cannot be compared"
    ):
        run._made(study, cluster, trial_spec, lambda _: None)


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (command.main, ["s", "--out", "o", "--fleet", "f"], "--fleet FILE needs --host NAME"),
        (command.main, ["s", "--out", "o", "--host", "a"], "--fleet FILE needs --host NAME"),
        (command.main, ["s", "--out", "o", "--fleet", "f", "--host", "../a"], "--fleet FILE needs --host NAME"),
        (member.main, ["--host", "a/b", "--join", "j"], "63 letters, digits"),
        (member.main, ["--host", "a"], "the following arguments are required: --join"),
    ],
)
def test_words_that_make_no_sense(main: Any, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("module", "doer", "words"),
    [
        (command, "Run", ["spec.json", "--out", "out"]),
        (member, "Member", ["--host", "a", "--join", "j", "--work", "out"]),
    ],
)
def test_a_full_disk_is_told_as_such(
    module: Any, doer: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_self: object) -> int:
        raise FULL

    monkeypatch.setattr(getattr(module, doer), "carry_out", full)
    assert module.main(words) == 1
    said = capsys.readouterr().err
    assert "error: a file below out: No space left on device\n" in said
    assert "run the same command again" in said
