"""Every command line and every link of the pages leads somewhere: the verb, its options, the file, the heading."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from orchestrator.cli.main import VERBS, load
from orchestrator.cli.verbs.help import pages
from tests.unit.docs.test_words import messages

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "results/reference/README.md"])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
#: Of every command, and of the program itself.
GLOBAL = {"--json", "--help", "--debug", "--quiet", "--version", "-C", "-q", "-v"}


def command_lines(text: str) -> list[str]:
    """What begins with ``fcctl`` on a line of a block or between backticks, without its comment."""
    blocks = "\n".join(a or b for a, b in re.findall(r"^```\w+\n(.*?)^```$|((?:^ {4,}.*\n)+)", text, re.M | re.S))
    lines = [*re.findall(r"^ *(?:\$ )?(fcctl [^\n]*)", blocks, re.MULTILINE), *re.findall(r"`(fcctl [^`]+)`", text)]
    return [re.split(r"\s#|\s\|\|? | > |\\$|;|&&", line)[0].strip() for line in lines]


def unknown(line: str) -> str | None:
    """What of ``fcctl VERB ..`` does not exist."""
    words = shlex.split(re.sub(r"[\[\]{}<>]|\.\.\.?$", " ", line), posix=True)[1:]
    while words and words[0] in GLOBAL:
        words.pop(0)
    if not words or words[0].isupper():
        return None
    verbs = words.pop(0).split("|")
    if not set(verbs) <= set(VERBS):
        return f"the verb {verbs}"
    command = load(verbs[0])
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = words.pop(0).split("|")
        if not set(below) <= set(command.commands):
            return f"{below} of {verbs[0]}"
        command = command.commands[below[0]]
    known = GLOBAL | {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    written = [
        word.split("=")[0]
        for word in words[: words.index("--") if "--" in words else None]
        if re.match(r"--?[a-z]", word)
    ]
    return next((option for option in written if option not in known), None)


@pytest.mark.parametrize("page", [name for name in NAMES if name != "docs/cli.md"])
def test_every_command_line_exists(page: str) -> None:
    wrong = {line: why for line in command_lines((ROOT / page).read_text()) if (why := unknown(line))}
    assert wrong == {}


def test_a_command_that_does_not_exist_is_found() -> None:
    assert [unknown(f"fcctl {line}") for line in ("fly", "run JOB --fast", "hosts fly", "run a --on b --set A=1")] == [
        "the verb ['fly']", "--fast", "['fly'] of hosts", None,
    ]  # fmt: skip
    assert command_lines("`fcctl ps`\n\n    fcctl run a   # b\n") == ["fcctl run a", "fcctl ps"]


def test_messages_name_pages_that_an_installation_has() -> None:
    """It has no folder docs, so that they say ``fcctl help PAGE``; the help of commands is in docs/cli.md."""
    sources = [
        path for place in ("orchestrator", "remote", "kernels/flashcore") for path in (ROOT / place).rglob("*.py")
    ]
    texts = [text for path in sources for _, text in messages(path.read_text(encoding="utf-8"))]
    texts.append((ROOT / "docs/cli.md").read_text().partition("-->")[2])
    texts += re.findall(r"^ *hint: .*", "".join(path.read_text() for path in ROOT.glob("jobs/*.yaml")), re.MULTILINE)
    assert [text for text in texts if re.search(r"(?<!/)\bdocs/(?!cli)[\w-]+\.md", text)] == []
    named = {name for text in texts for name in re.findall(r"\bfcctl help ([a-z][a-z0-9-]*)", text)}
    assert named >= {"jobs", "configuration", "gcp", "tune", "statistics", "report", "emulator"}
    assert named - pages().keys() == set()


def test_values_of_options_have_a_name() -> None:
    assert re.findall(r"`-.*\b(?:INTEGER|FLOAT|RANGE|PATH|DIRECTORY)\b", (ROOT / "docs/cli.md").read_text()) == []


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMES)
def test_every_link_leads_somewhere(page: str) -> None:
    here = ROOT / page
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", here.read_text()):
        to = (here.parent / file).resolve() if file else here
        assert to.exists(), file
        assert not anchor or anchor in anchors(to), f"{file}#{anchor}"


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
