from __future__ import annotations

import pytest

from orchestrator.base.errors import ConfigError, ConflictError, NotFoundError, UsageError
from orchestrator.results.store.names import (
    MAX_NOTE,
    MAX_RUNS,
    Tag,
    check_name,
    read_tags,
    tags_text,
    with_tag,
    without_tag,
)

ONE, OTHER = "20261121t081530z-phase1-l4-3fa9c1", "20261121t091530z-phase1-l4-3fa9c2"
BASE = Tag("baseline", (ONE,), "2026-11-21T08:15:30.000Z", 'before the "rewrite" \\ \x7f\n')


def test_a_file_reads_back_as_it_was_written() -> None:
    tags = {"baseline": BASE, "v1.0": Tag("v1.0", (ONE, OTHER))}
    assert read_tags(tags_text(tags), "tags.toml") == tags
    assert tags_text(read_tags(tags_text(tags), "x")) == tags_text(tags)


def test_names_that_can_be() -> None:
    assert [check_name(name) for name in ("a", "a" * 40, "v1.0-x_y")] == ["a", "a" * 40, "v1.0-x_y"]


@pytest.mark.parametrize("name", ["last", "all", "", "A", "a b", "../x", "a" * 41, ONE, "-x", "a\n"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize(
    "text",
    ["<<<<<<< HEAD\n", "tags = 3", "[tags.x]\nruns = []", "[tags.x]\nruns = ['../..']", "[tags.last]\nruns = ['x']",
     f"[tags.x]\nruns = '{ONE}'", "\0"],
)  # fmt: skip
def test_a_damaged_file_is_an_error_with_a_way_out(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tags(text, "results/tags.toml")
    assert "git checkout" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("tag", "move", "kept"),
    [
        (Tag("v1", (ONE,), "now"), False, Tag("v1", (ONE,), "now")),  # a new name
        (Tag("baseline", (ONE,), "now"), False, BASE),  # the same again
        (Tag("baseline", (ONE,), "now", "why"), False, Tag("baseline", (ONE,), BASE.created, "why")),
        (Tag("baseline", (OTHER,), "now"), True, Tag("baseline", (OTHER,), "now")),  # a note of others is not kept
    ],
)
def test_what_is_kept_of_a_tag_that_is_given_again(tag: Tag, move: bool, kept: Tag) -> None:
    tags = {"baseline": BASE}
    assert with_tag(tags, tag, move=move) == {"baseline": BASE, tag.name: kept}
    assert tags == {"baseline": BASE}


def test_a_tag_leaves_its_runs_only_if_that_is_said() -> None:
    with pytest.raises(ConflictError, match=f"already names {ONE}") as refused:
        with_tag({"baseline": BASE}, Tag("baseline", (OTHER,)), move=False)
    assert f"--move baseline {OTHER}" in (refused.value.hint or "")


def test_a_tag_that_is_removed_leaves_the_others() -> None:
    assert without_tag({"baseline": BASE, "v1": Tag("v1", (ONE,))}, "v1") == {"baseline": BASE}
    with pytest.raises(NotFoundError, match="unknown tag 'baselin'") as refused:
        without_tag({"baseline": BASE}, "baselin")
    assert "baseline" in (refused.value.hint or "")


def test_how_much_a_tag_may_say() -> None:
    runs = ", ".join([f'"{ONE}"'] * MAX_RUNS)
    (tag,) = read_tags(f"[tags.x]\nruns = [{runs}]\nnote = '{'n' * 501}'", "x").values()
    assert (len(tag.runs), len(tag.note)) == (MAX_RUNS, MAX_NOTE) == (100, 500)
    with pytest.raises(ConfigError):
        read_tags(f'[tags.x]\nruns = [{runs}, "{ONE}"]', "x")
