"""Which fcctl.toml is the workspace's."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base import safe_paths
from orchestrator.base.errors import ConfigError, NotFoundError
from orchestrator.cli.context import Cli
from orchestrator.cli.main import main
from orchestrator.workspace.workspace import find_root

RUN = "20261121t081530z-phase1-l4-3fa9c1"


def made(folder: Path, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fcctl.toml").write_text(text)
    return folder


def test_the_nearest_one_is(tmp_path: Path) -> None:
    outer, inner = made(tmp_path), made(tmp_path / "a" / "b")
    (inner / "c").mkdir()
    assert find_root(inner / "c") == inner
    assert find_root(tmp_path / "a") == outer


@pytest.mark.parametrize("below", ["results", f"results/runs/{RUN}/artifacts", "results/runs/x/artifacts/a"])
def test_none_below_the_results_is(tmp_path: Path, below: str) -> None:
    made(tmp_path)
    assert find_root(made(tmp_path / below)) == tmp_path


def test_none_below_results_of_another_name_or_place_is(tmp_path: Path) -> None:
    root = made(tmp_path / "ws", f'project.results = "{tmp_path}/kept"\n')
    inside = made(root / "out" / "x", "this is [no TOML")
    assert find_root(inside) == inside, "a folder of the workspace like any other"
    made(root, '[project]\nresults = "out"\n')
    assert find_root(inside) == root


@pytest.mark.parametrize("name", [RUN, f"{RUN}.partial", f".import-{RUN}-0a1b", f".pruned-{RUN}"])
def test_none_in_a_runs_folder_is_wherever_that_was_moved(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "kept" / "runs" / name
    inside = made(folder / "artifacts")
    (folder / "run.json").touch()
    with pytest.raises(NotFoundError, match=r"no fcctl\.toml in .*") as raised:
        find_root(inside)
    assert raised.value.cause == "the only fcctl.toml found is a file of a run; files of runs are not a workspace"
    (tmp_path / "link").symlink_to(inside)
    with pytest.raises(NotFoundError):
        find_root(tmp_path / "link")
    made(tmp_path)
    assert find_root(inside) == tmp_path


def test_a_hosts_own_copy_of_the_source_is(tmp_path: Path) -> None:
    """A step may call fcctl: ``~/.fcctl/runs/ID/src`` is a workspace there, and no result."""
    source = made(tmp_path / ".fcctl" / "runs" / RUN / "src")
    assert find_root(source) == source


def test_no_command_asks_a_machine_that_a_run_named(
    tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How to reach a machine may be a command."""
    made(tmp_path, '[project]\nname = "mine"\n')
    theirs = '[project]\nname = "theirs"\n[targets.evil]\nkind = "local"\n'
    inside = made(tmp_path / "results" / "runs" / RUN / "artifacts", theirs)
    monkeypatch.chdir(inside)
    assert main(["config", "get", "project.name"]) == 0
    assert capsys.readouterr().out.strip() == "mine"
    monkeypatch.setattr(Cli, "start", inside)
    from orchestrator.cli.verbs.completion import target_names

    assert target_names() == ["local", "sandbox"]


def test_a_disk_that_tells_names_by_their_case_has_no_other_spelling(tmp_path: Path) -> None:
    for name in ("Both", "bOTH", "ONE", "12"):
        (tmp_path / name).mkdir()
    for name in ("Both", "bOTH", "one", "12", "none/a"):
        assert safe_paths.spelled(tmp_path / name) == tmp_path / name
        assert not safe_paths.ignores_case(tmp_path / name)
    assert not safe_paths.ignores_case(Path("/"))


def test_a_folder_called_fcctl_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "fcctl.toml").mkdir()
    with pytest.raises(ConfigError, match="is a folder") as refused:
        find_root(tmp_path)
    assert f"mv {tmp_path}/fcctl.toml {tmp_path}/fcctl.toml.old; then: fcctl init" in str(refused.value.hint)
