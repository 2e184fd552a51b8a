"""Words that docs/glossary.md replaced stay out of pages, help, messages and names: what is left may only shrink.

``python -m tests.unit.docs.test_words`` prints the counts as they are now, with the name of a slice each place in it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = ROOT / "docs/glossary.md"
#: What is always in a replaced word, the word, and what the glossary says instead. All of it lower case.
GONE = [
    (
        "home",
        r"(?<![\w-])(?:br[io]u?ng(?:s|ht|ing)?|com(?:es?|ing)|came|see|is|are|was|at)[ _](?:\w+[ _]){0,3}?home\b",
        "collect",
    ),
    ("go", r"let(?:s|ting)?[ _](?:it[ _]|them[ _])?go\b|lettinggo", "release"),
    ("go", r"(?:nothing|what|runs?)[ _]goes[ _]on\b", "active, no active runs"),
    ("go", r"go(?:es|ing)?[ _]on\b", "continue; resume (a run)"),
    ("went", r"went[ _]on\b", "continued; resumed (a run)"),
    ("on for nobody", r"on for nobody", "orphaned"),
    ("stray", r"strays?\b", "orphaned"),
    ("sighting", r"sightings?\b", "usage record"),
    ("witness", r"witness(?:es)?\b", "usage record"),
    ("ow", r"ow(?:e|es|ed|ing)\b", "pending release; reserved"),
    ("debt", r"debts?\b", "pending release"),
    ("purse", r"purses?\b", "cap"),
    ("reckon", r"reckon(?:s|ed|ing)?\b", "estimate, compute"),
    ("holding", r"holdings?\b", "billable resource"),
    ("leftover", r"leftovers?\b", "billable resource"),
    ("fence", r"fence[ds]?\b", "max run duration, shutdown timer, limit"),
    ("lateness", r"lateness\b", "late-stop allowance"),
    ("judgement", r"judgements?\b", "verdict"),
    ("sitting", r"sittings?\b", "run"),
    ("shipment", r"shipments?\b", "file set"),
    ("parcel", r"parcels?\b", "file set"),
    ("curiosity", r"curiosity\b", "exploration weight"),
    ("roomiest", r"roomiest\b", "largest remaining"),
    ("heir", r"heirs?\b", "next leader"),
    ("conductor", r"conductors?\b", "fleet coordinator"),
    ("leash", r"leash(?:es)?\b", "connection lifetime"),
    ("crew", r"crews?\b", "worker pool"),
    ("roster", r"rosters?\b", "membership"),
    ("keeper", r"keepers?\b", "supervisor"),
    ("spoke", r"spokes?\b", "worker host"),
    ("wish", r"wish(?:es)?\b", "request"),
    ("told", r"told (?:of|that|as|in|beforehand)\b|(?:is|are) told\b", "report, say to whom"),
    ("aside", r"ask_aside\b", "query_in_thread"),
    ("who_is", r"who_is_coming\b|who_is\b", "waiting_runs"),
    ("say_", r"say_(?:detached|never_begun)\b", "print_..."),
    ("tidy_host", r"tidy_host\b", "delete_old_runs"),
    ("kept_by", r"kept_by\b", "owner_of"),
    ("left_of_caps", r"left_of_caps\b", "remaining_budget"),
]
#: Where such words still stand, by slice. Lower a number when yours is lower; a slice that is missing has none.
ALLOWED: dict[str, int] = {
    "kernels/flashcore": 3,
    "orchestrator/base": 2,
    "orchestrator/cli": 7,
    "orchestrator/emulator": 3,
    "orchestrator/hosts": 10,
    "orchestrator/machines": 6,
    "orchestrator/money": 15,
    "orchestrator/results": 1,
    "orchestrator/runs": 21,
    "orchestrator/schedules": 1,
    "orchestrator/views": 11,
    "orchestrator/workspace": 2,
    "pages": 3,
    "remote/fcctl_remote": 14,
    "remote/fcctl_tune": 1,
}
#: Classes and functions that have another name now, unless a slice has one of them for another thing.
NAMES_GONE = re.compile(
    r"^ *(?:class|def) (LettingGo|MachineHold|Held|Hold|StillWanted|StoppedAgain|Moves?|Wish|Wanted|Waking|Use|SetFence"
    r"|GiveUp|Withdraw|Leftover|Holdings?|Life|Witness|Sightings?|Remark|Spent|Standing|Place|Ended|Up|Kept|Open|HeldSession|Money"
    r"|Stopped|On|MachineBook|Link|Dialer|Shipment|Parcel|Passage|Library|Shelf|Doomed|Side|Found|Busy|Fact|Rung|Places"
    r"|Sitting|Stepped|Neighbour|Past|Conductor|Heard|Tacit|Impatient|Watching|Former|Way|Hub|Spoke|Sheet|Piece|Site|Silent"
    r"|Quiet|Plain|Leash|Gathered|Judgement|Mirror|Reserve|Flight|Station|Pace|Lacking|Belief|Room|Beside|Lost|Recipe"
    r"|Together|Undone|Roster|Crew|Guest|Nonsense|Forbidden|go_on|see_home|at_home|pay|owe|settle|ask_aside|in_cloud|at_work"
    r"|who_is_coming|belongs|agree|say_detached|say_never_begun|had|brought|came|curiosity|tidy_host|kept_by|left_of_caps"
    r"|roomiest|bury)\b",
    re.MULTILINE,
)
NAMES_LEFT = {
    "kernels/flashcore Library", "orchestrator/emulator Guest", "orchestrator/machines Link",
    "orchestrator/machines at_work", "orchestrator/money Witness",
    "orchestrator/schedules at_work", "remote/fcctl_tune Stopped",
    "remote/fcctl_tune at_home",
}  # fmt: skip
#: Phrases that no message, hint or help text has any more, in the slices whose messages were all rewritten.
PHRASES_GONE = re.compile(
    r"\b(?:anew|all the same|to know about|somebody|nobody|anybody|whoever|whatever|on its way|at work|is over"
    r"|of its own|c[oa]mes? to|go(?:es)? on|is to be|there is no|what is there|(?-i:(?<![${])home)|dear(?:er|est)"
    r"|woken|waking|keeps? warm|how it stands|beside|mend(?:ed)?|says?|told|has it|for so long|so many"
    r"|for instance|wants|look(?:ed)? at|else (?:all|the|from)|take (?:it|the marks) away|too little to begin"
    r"|buys|was asked for|comes? back|(?<!there )(?:is|are) no [a-z]+|input should be|turn(?:s|ed)? on|is gone"
    r"|is letting|cut off|makes no sense|nonsense|out of reach|hung up|fell silent|do not compare|free some space"
    r"|not (?:here|there)|time line|top line|under history|book of spending|best before|less is better|at worst)\b",
    re.IGNORECASE,
)
IN_PLAIN_WORDS = ("orchestrator", "remote", "kernels/flashcore")
NAMES_STAY = re.compile(r"\.owed\b|--[\w-]+|\bowed/")


def slice_of(name: str) -> str | None:
    """The part of the project that a file counts for; None for what this test does not read."""
    path = Path(name)
    if path.suffix == ".md" and path.parts[0] in ("docs", "README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md"):
        return "pages"
    if path.suffix in (".py", ".j2", ".html", ".js") and path.parts[0] in ("orchestrator", "remote", "kernels"):
        return "/".join(path.parts[:2])
    return "jobs" if path.suffix == ".yaml" and path.parts[0] in ("jobs", "tune") else None


def files() -> Iterator[tuple[str, Path]]:
    """(slice, file) of all that is read."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        part = slice_of(name)
        if part is not None and (ROOT / name).is_file() and ROOT / name != GLOSSARY:
            yield part, ROOT / name


def places() -> Iterator[tuple[str, str, int, str, str]]:
    """(slice, file, line, word, what to write) of every replaced word."""
    gone = [(stem, re.compile(word), instead) for stem, word, instead in GONE]  # a literal first: that is quick
    for part, path in files():
        text = NAMES_STAY.sub("", path.read_text(encoding="utf-8").lower())
        for _, word, instead in (entry for entry in gone if entry[0] in text):
            for match in word.finditer(text):
                if match.start() and re.match(r"[\w-]", text[match.start() - 1]):
                    continue
                line = text.count("\n", 0, match.start()) + 1
                yield part, str(path.relative_to(ROOT)), line, match.group(), instead


def counts() -> dict[str, int]:
    numbers: dict[str, int] = {}
    for part, *_ in places():
        numbers[part] = numbers.get(part, 0) + 1
    return dict(sorted(numbers.items()))


def test_replaced_words_do_not_come_back() -> None:
    """Code that moves to another slice takes its words along, so one slice may grow where all together do not."""
    now = counts()
    grown = {part: (n, ALLOWED.get(part, 0)) for part, n in now.items() if n > ALLOWED.get(part, 0)}
    assert grown == {} or sum(now.values()) <= sum(ALLOWED.values()), (
        "(now, allowed) of each slice; python -m tests.unit.docs.test_words SLICE shows the places"
    )


def test_replaced_names_do_not_come_back() -> None:
    named = {
        f"{part} {name}" for part, path in files() for name in NAMES_GONE.findall(path.read_text(encoding="utf-8"))
    }
    assert named - NAMES_LEFT == set()


def messages(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every text of several words, without docstrings: those of commands are in docs/cli.md."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):  # what holds a node comes before it
        if isinstance(node, ast.Expr):
            docs.add(id(node.value))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in docs
        ):
            yield node.lineno, node.value


def test_messages_have_none_of_the_replaced_phrases() -> None:
    places = [ROOT / name for name in IN_PLAIN_WORDS]
    found = [f"docs/cli.md: {m[0]}" for m in PHRASES_GONE.finditer((ROOT / "docs/cli.md").read_text())]
    for path in (path for place in places for path in place.rglob("*.py")):
        for line, text in messages(path.read_text(encoding="utf-8")):
            found += [f"{path.relative_to(ROOT)}:{line}: {m[0]}" for m in PHRASES_GONE.finditer(text)]
    assert found == []


def test_the_glossary_is_short_and_every_term_has_one_meaning() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", GLOSSARY.read_text(), re.MULTILINE)
    terms = [term for cell, _ in rows for term in cell.split(", ") if cell not in ("term", "---")]
    assert 30 < len([row for row in rows if row[0] not in ("term", "---")]) <= 45
    assert len(terms) == len(set(terms))


@pytest.mark.parametrize("text", ["results come home", "it lets go", "nothing goes on", "on for nobody", "a parcel"])
def test_a_replaced_word_is_found(text: str) -> None:
    assert [word for stem, word, _ in GONE if stem in text and re.search(rf"(?<![\w-]){word}", text)]


if __name__ == "__main__":
    shown = sys.argv[1] if len(sys.argv) > 1 else None
    for part, name, number, text, instead in places():
        if part == shown:
            print(f"{name}:{number}: {text!r}: {instead}")
    if shown is None:
        print("\n".join(f'    "{part}": {n},' for part, n in counts().items()))
