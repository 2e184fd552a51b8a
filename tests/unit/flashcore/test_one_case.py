"""``check --case``: only what was asked runs, and the document says what that was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashcore import cases, plain, separate
from flashcore.__main__ import main
from flashcore.command import checking
from flashcore.errors import UsageError

pytestmark = [pytest.mark.usefixtures("kernel_processes"), pytest.mark.group("kernel processes")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("mission/1", ["mission/1"]),
        ("edges; s64/2", ["edges", "s64/2"]),
        ("s64", ["s64/1", "s64/2", "s64/3"]),
        ("1,1,16,64/1", ["1,1,16,64/1"]),
    ],
)
def test_what_a_case_s_name_means(text: str, names: list[str]) -> None:
    assert list(cases.choose(text, ["mission", "s64", "1,1,16,64"])) == names


def test_all_cases_and_an_unknown_one() -> None:
    assert len(cases.choose("all", ["a", "b", "c", "d", "e"])) == 20
    assert len(cases.choose("", ["a"])) == 8
    with pytest.raises(UsageError, match="unknown case 'a/4'"):
        cases.choose("a/4", ["a"])


def test_nothing_behind_the_last_case_is_prepared() -> None:
    def all_cases() -> Iterator[tuple[str, int, Iterator[cases.Trial]]]:
        yield "a/1", 1, iter(())
        yield "a/2", 1, iter(())
        raise AssertionError("the summary cases build every configuration")

    assert [name for name, _, _ in cases.only(("a/2",), all_cases())] == ["a/2"]


@pytest.mark.parametrize(("case", "torch"), [("s64/1", True), ("repeat", False)])
def test_the_command_runs_it(case: str, torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch:
        pytest.importorskip("torch")
    else:
        monkeypatch.setattr(checking, "plain_kernel", lambda options: plain.Kernel(_built(options)))
    assert main(["check", "cpu", "--shape", "s64", "--case", case, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "correctness-cpu.json").read_text())
    assert [one["name"] for one in document["cases"]] == [case]
    assert (document["asked"], document["summary"]["total"]) == (case, 1)


def _built(options: object) -> object:
    from flashcore.command.asked import build_all, tuned_of

    return build_all(options, tuned_of(options), None)[0]  # type: ignore[arg-type]


def test_the_whole_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashcore import shapes

    document = {"label": "cpu", "seeds": [1, 2, 3], "summary": {"passed": 20, "failed": 0, "total": 20}}
    names = cases.choose("all", shapes.SHAPES)
    before = list(separate._live)
    for chosen, asked in ((shapes.SHAPES, "all"), ({"mission": shapes.SHAPES["mission"]}, ";".join(names))):
        checking._finish(document, tmp_path, chosen, names)
        assert document["asked"] == asked
    assert separate._live == before, "it starts no process"
