from __future__ import annotations

import pytest

from orchestrator.base.errors import ConfigError, UsageError
from orchestrator.results.store.names import Tag, check_name, read_tags, tags_text

ONE, OTHER = "20261121t081530z-phase1-l4-3fa9c1", "20261121t091530z-phase1-l4-3fa9c2"
BASE = Tag("baseline", (ONE,), "2026-11-21T08:15:30.000Z", 'before the "rewrite" \\ \x7f\n')


def test_a_file_reads_back_as_it_was_written() -> None:
    tags = {"baseline": BASE, "v1.0": Tag("v1.0", (ONE, OTHER))}
    assert read_tags(tags_text(tags), "tags.toml") == tags
    assert tags_text(read_tags(tags_text(tags), "x")) == tags_text(tags)


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
