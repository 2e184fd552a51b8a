from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import click
import pytest

from orchestrator.base.errors import HostUnreachable, RunCancelled, UsageError
from orchestrator.cli import main as main_module
from orchestrator.cli.context import Cli
from orchestrator.cli.main import main
from tests.support.command import run_fcctl, source_environment

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, private_home: Path, tmp_path: Path) -> dict[str, Cli]:
    """A verb ``probe`` whose behaviour its argument names; remembers the Cli it got."""
    seen: dict[str, Cli] = {}
    errors = {
        "unreachable": HostUnreachable("cannot reach box", reason="port", cause="refused", hint="ssh box true"),
        "defect": ZeroDivisionError("oops"),
        "interrupt": KeyboardInterrupt(),
        "torn": ValueError("cannot be closed"),
        "exit": SystemExit(100),
    }
    errors["torn"].__context__ = KeyboardInterrupt()

    @click.command()
    @click.argument("what", default="nothing")
    @click.option("--limit", type=int)
    @click.pass_obj
    def probe(cli: Cli, what: str, limit: int | None) -> int | None:
        """Do WHAT."""
        seen["cli"] = cli
        if what == "emit":
            cli.emit({"x": 1})
        elif what == "note":
            cli.note("a note")
        elif what in errors:
            raise errors[what]
        elif what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == "confirm":
            cli.confirm("would spend 2 USD")
            click.echo("spent")
        return 10 if what == "ten" else None

    monkeypatch.setitem(main_module.VERBS, "probe", main_module.Verb(__name__, "Do something."))
    monkeypatch.setattr(main_module, "load", lambda name: main_module.adopt(probe))
    monkeypatch.chdir(tmp_path)
    return seen


@pytest.mark.parametrize(
    ("what", "code"),
    [("nothing", 0), ("ten", 10), ("exit", 100), ("interrupt", 130), ("term", 143), ("defect", 1), ("torn", 130)],
)
def test_exit_codes(verb: dict[str, Cli], what: str, code: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["probe", what]) == code
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "argv",
    [
        ["--json", "-q", "-vv", "--debug", "--color", "never", "-C", "/", "--yes", "probe"],
        ["probe", "--json", "-q", "-vv", "--debug", "--color", "never", "-C", "/", "--yes"],
        ["--json", "-v", "-q", "probe", "-v", "--debug", "--color=never", "--workspace", "/", "--yes"],
    ],
)
def test_global_options_before_and_after_the_verb(verb: dict[str, Cli], argv: list[str]) -> None:
    assert main(argv) == 0
    cli = verb["cli"]
    assert (cli.json, cli.quiet, cli.verbose, cli.debug, cli.color, cli.yes) == (True, True, 2, True, "never", True)
    assert cli.start == Path("/")


def test_the_workspace_can_come_from_the_environment(verb: dict[str, Cli], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCCTL_WORKSPACE", "/usr")
    main(["probe"])
    assert verb["cli"].start == Path("/usr")


def test_an_error_in_words(verb: dict[str, Cli], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "unreachable"]) == 6
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: cannot reach box\ncause: refused\nhint:  ssh box true\n"


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["prob"], "unknown command 'prob'", "did you mean 'probe'?"),
        (["zzz"], "unknown command 'zzz'", "known: attach, "),
        (["probe", "--limt", "1"], "no such option '--limt'", "did you mean '--limit'?"),
        (["probe", "--jsn"], "no such option '--jsn'", "did you mean '--json'?"),
        (["--jsn", "probe"], "no such option '--jsn'", "did you mean '--json'?"),
        (["probe", "--limit", "many"], "'many' is not a valid integer", "fcctl probe --help"),
        (["probe", "a", "b"], "got unexpected extra argument", "fcctl probe --help"),
        (["--color", "blue", "probe"], "'blue' is not one of", "fcctl --help"),
    ],
)
def test_usage_errors(
    verb: dict[str, Cli], capsys: pytest.CaptureFixture[str], argv: list[str], message: str, hint: str
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert message in err.splitlines()[0]
    assert err.splitlines()[1].startswith("hint:")
    assert hint in err
    assert main(["--json", *argv]) == 2
    assert message in json.loads(capsys.readouterr().err)["error"]["message"]


def test_a_wrong_command_of_a_group_is_told_as_one_of_fcctl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "lst"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'lst'\nhint:  did you mean 'ls'?\n"


def test_no_verb_prints_help_and_is_a_usage_error(verb: dict[str, Cli], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert "Commands:" in out + err


def test_what_an_interrupt_left_half_done_is_said(verb: dict[str, Cli], capsys: pytest.CaptureFixture[str]) -> None:
    main(["probe", "torn"])
    said = capsys.readouterr().err
    assert "interrupted, then another error: ValueError: cannot be closed; the traceback is in" in said
    assert main(["probe", "torn", "--json"]) == 130
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "interrupted"


def test_a_defect_names_the_log_and_shows_no_traceback(
    verb: dict[str, Cli], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "defect"]) == 1
    err = capsys.readouterr().err
    log = verb["cli"].log_file
    assert "unexpected ZeroDivisionError: oops" in err
    assert str(log) in err
    assert "Traceback" not in err
    assert log is not None
    assert "Traceback" in log.read_text()
    assert main(["probe", "defect", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_notes_are_for_people(verb: dict[str, Cli], capsys: pytest.CaptureFixture[str]) -> None:
    main(["probe", "note"])
    assert capsys.readouterr() == ("", "a note\n")
    main(["probe", "note", "-q"])
    main(["probe", "note", "--json"])
    assert capsys.readouterr() == ("", "")


def test_a_yes_is_needed(
    verb: dict[str, Cli], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["probe", "confirm"]) == UsageError.exit_code
    assert "--yes" in capsys.readouterr().err
    assert main(["probe", "confirm", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("spent\n", "would spend 2 USD\n")
    for answer, code in (("y\n", 0), ("yes\n", 0), ("\n", RunCancelled.exit_code), ("n\n", RunCancelled.exit_code)):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stdin, "readline", lambda answer=answer: answer, raising=False)
        assert main(["probe", "confirm"]) == code
        assert ("spent" in capsys.readouterr().out) is (code == 0)


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["run", "--help"]])
def test_nothing_slow_is_imported(private_home: Path, argv: list[str]) -> None:
    program = (
        "import sys; from orchestrator.cli.main import VERBS, main; code = main(sys.argv[1:]);"
        "slow = {'pydantic', 'rich', 'paramiko', 'fabric', 'yaml', 'sqlite3'} & set(sys.modules);"
        "sys.exit(f'imported {slow}' if slow else code)"
    )
    command = [sys.executable, "-c", program, *argv]
    done = subprocess.run(command, check=False, env=source_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_is_the_project_s(private_home: Path) -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run_fcctl("--version", cwd=ROOT).out == f"fcctl {version}\n"


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_a_closed_pipe_is_no_error(private_home: Path, json_option: list[str]) -> None:
    command = [sys.executable, "-m", "orchestrator.cli.entry", "-C", str(ROOT), "jobs", "ls", *json_option]
    process = subprocess.Popen(command, env=source_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.parametrize(
    ("error", "cause", "hint"),
    [
        (
            OSError(errno.EIO, "Input/output error", "/x/y"),
            "Input/output error (/x/y)",
            "check the file system of /x/y",
        ),
        (OSError(errno.EROFS, "Read-only file system", "/x/y"), "Read-only file system (/x/y)", "ls -ld /x/y"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device (", "free disk space"),
    ],
)
def test_a_disk_that_fails_has_a_cause_and_a_next_command(
    verb: dict[str, Cli], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: OSError,
    cause: str, hint: str,
) -> None:  # fmt: skip
    assert verb == {}
    monkeypatch.setattr(Cli, "note", mock.Mock(side_effect=error))
    assert main(["probe", "note"]) == 1
    err = capfd.readouterr().err
    assert "unexpected" not in err
    assert f"cause: {cause}" in err
    assert hint in err


@pytest.mark.parametrize("place", ["results", "results/active", "results/runs"])
def test_a_file_where_a_folder_is_wanted_is_named(private_home: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "fcctl.toml").write_text("")
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    for command in (["ps"], ["results", "ls"]):
        done = run_fcctl(*command, cwd=tmp_path)
        if done.code:
            assert f"cause: {file} is no folder, and fcctl needs a folder there" in done.err
            assert f"mv {file} {file}.old" in done.err
    assert done.code == (0 if place == "results/active" else 1)
