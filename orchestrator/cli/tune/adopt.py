"""``fcctl tune --adopt RUN``: the winners as a difference to look at, then in their table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from orchestrator.base.sanitize import clean, clean_text
from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.results.records import RunRecord
    from orchestrator.tune.adoption import Adoption, Row
    from orchestrator.tune.search_file import Adopt, Search


def adopt_run(cli: Cli, name: str, *, force: bool, dry_run: bool) -> None:
    """Show what RUN's winners change, and change it once that is agreed to.

    Raises:
        ConflictError: there are none; or something speaks against them, and there is no ``force``.
    """
    from orchestrator.results.look import show
    from orchestrator.tune.adopt import proposed
    from orchestrator.tune.adopt_table import AdoptTable

    workspace = cli.workspace()
    searches = {search.name: search for search in workspace.searches.readable()}
    with cli.services() as services:
        shown = show(services.store, name)
    found = proposed(shown, searches)
    _refuse_nothing(shown.record, found, searches)
    _refuse(shown.record.run_id, found, force=force)
    table = AdoptTable(workspace.root, _table_of(found, searches))
    before = after = table.read()
    for one in found:
        after = table.with_rows(after, one)
    diff = _difference(table.file, before, after)
    document = {
        "run_id": shown.record.run_id, "file": table.file, "diff": diff, "written": False,
        "rows": [row.as_dict() for one in found for row in one.rows],
        "doubts": [doubt for one in found for doubt in one.doubts],
    }  # fmt: skip
    _show(cli, found, diff, shown.record.run_id)
    for fault in (fault for one in found for fault in _not_now(one, searches)):
        cli.note(fault)
    if diff and not dry_run:
        cli.confirm(f"write {table.file}")
        table.write(after, instead_of=before)
    if cli.json:
        cli.emit({**document, "written": bool(diff) and not dry_run})
    elif diff and not dry_run:
        cli.note(f"wrote {table.file}; look at it with git diff, and commit it with the run's id")


def _difference(file: str, before: str, after: str) -> str:
    """As ``git apply`` takes it; empty if nothing differs."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _refuse_nothing(record: RunRecord, found: list[Adoption], searches: dict[str, Search]) -> None:
    """A search that was cancelled measured nothing again, as a rule: then there is nothing to insist on."""
    from orchestrator.base.errors import ConflictError

    if any(one.rows for one in found):
        return
    first, *_ = found
    again = f"search again: fcctl tune {clean(_name_of(first, searches), 40)} --on {record.target}"
    if record.was_cut_off:
        again = f"go on with it: fcctl run --resume {record.run_id}"
    raise ConflictError(
        f"run {record.run_id} has nothing to adopt, with or without --force",
        cause="; ".join(dict.fromkeys(clean(doubt, 300) for one in found for doubt in one.doubts)),
        hint=f"{again}; what was tried: fcctl logs {record.run_id}",
    )


def _name_of(found: Adoption, searches: dict[str, Search]) -> str:
    """What ``fcctl tune`` calls it: by its variant, if its file names that."""
    search = searches.get(found.search)
    variable, names = (search.variants if search else None) or ("", ())
    variant = found.env.get(variable, "")
    return variant if variant in names else found.search


def _refuse(run_id: str, found: list[Adoption], *, force: bool) -> None:
    from orchestrator.base.errors import ConflictError

    doubts = [clean(doubt, 300) for one in found for doubt in one.doubts]
    if doubts and not force:
        raise ConflictError(
            f"run {run_id} does not prove its winners", cause="; ".join(dict.fromkeys(doubts)),
            hint="search again with more trials or with other held-out cases; to take them all the same: --force",
        )  # fmt: skip


def _table_of(found: list[Adoption], searches: dict[str, Search]) -> Adopt:
    from orchestrator.base.errors import ConfigError, NotFoundError

    (first, *others) = dict.fromkeys(one.search for one in found)
    if others:
        names = clean(f"{first} and {', '.join(others)}")
        raise NotFoundError(f"the run searched {names}: their tables differ")
    if first not in searches:
        raise NotFoundError(
            f"there is no tune/{clean(first, 40)}.yaml here any more", hint="its `adopt` names the table"
        )
    adopt = searches[first].adopt
    if adopt is None:
        raise ConfigError(
            f"{searches[first].file} names no table for its winners", hint="add to it, say:  adopt: tuned.json"
        )
    return adopt


def _not_now(found: Adoption, searches: dict[str, Search]) -> Iterator[str]:
    """Winners that the search's file, as it is now, does not have: it changed, or --space gave another space."""
    search = searches.get(found.search)
    space = search.spec.space if search is not None else None
    for params in [row.params for row in found.rows if space is not None and row.params not in space]:
        shown = " ".join(f"{key}={value}" for key, value in params.items())
        yield f"{search.file if search else ''} as it is now has no such configuration: {clean(shown, 300)}"


def _show(cli: Cli, found: list[Adoption], diff: str, run_id: str) -> None:
    if cli.json:
        return
    for one in found:
        env = " ".join(f"{key}={value}" for key, value in one.env.items())
        click.echo(clean_text(f"run {run_id}, {one.search}{f' ({env})' if env else ''}"))
        for row in one.rows:
            click.echo("  " + clean(_evidence(row), 400))
        for doubt in one.doubts:
            click.echo("  taken by --force although " + clean(doubt, 300))
    click.echo(clean_text(diff) if diff else "nothing to change: the table says so already", nl=not diff)


def _evidence(row: Row) -> str:
    said = f"{row.gpu}, {row.case}: " + " ".join(f"{k}={v}" for k, v in row.params.items())
    for what, ratio in (("of the default's time", row.ratio), ("on what was held out", row.held_out)):
        if ratio is not None and ratio.low is not None and ratio.high is not None:
            said += f"; {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] {what}"
    return said
