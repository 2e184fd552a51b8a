"""The pages stay short enough to be read: in all, the first run of the README, and the way into the code."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Generated, or notes for those who write such a kernel or search.
APART = {"cli.md", "faults.md", "flagship-notes.md", "next-kernel.md", "search.md"}


def words(text: str) -> int:
    return len(text.split())


def test_the_pages_are_short() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(words(page.read_text()) for page in pages if page.name not in APART) <= 30_000
    assert words((ROOT / "docs/architecture.md").read_text()) <= 1_500


def test_the_first_run_is_within_150_words_of_the_readme() -> None:
    before, passed, _ = (ROOT / "README.md").read_text().partition("Gates  7 of 7 passed")
    assert passed, "what make demo prints"
    assert "make demo" in before
    assert words(before) <= 150
