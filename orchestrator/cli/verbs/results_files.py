"""``fcctl results export``, ``import``, ``prune`` and ``report``."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from orchestrator.base.errors import FcctlError, UsageError, plural
from orchestrator.base.files import replacing
from orchestrator.base.installation import version
from orchestrator.base.json_text import pick
from orchestrator.cli.context import Cli, CliCommand, Parsed

if TYPE_CHECKING:
    from orchestrator.results.look import Plan, Shown
    from orchestrator.views.blocks import Chart
    from orchestrator.views.report.model import Report


ARCHIVE = "tar.zst"
FORMATS = ("json", "jsonl", "csv", "flashcore", ARCHIVE)
_ENDINGS = {".tar.zst": ARCHIVE, ".csv": "csv", ".jsonl": "jsonl", ".json": "json"}


def form_of(output: str, endings: Mapping[str, str], default: str, option: str) -> str:
    """The form of a file by its name; ``default`` without an ending. Raises UsageError for an unknown ending."""
    ending = Path(output).suffix.lower()
    form = next((form for known, form in endings.items() if output.lower().endswith(known)), None)
    if form is None and ending not in ("", "."):
        raise UsageError(
            f"-o {output}: unknown file ending '{ending}'",
            hint=f"use one of {', '.join(endings)}, or give the format: {option}",
        )
    return form or default


@contextmanager
def written(path: Path, *, parents: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` once it is whole and on disk; ``parents``: makes its folder. Raises
    FcctlError if it cannot be written."""
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path.parent, path.name) as fd, os.fdopen(fd, "wb", closefd=False) as stream:
            yield stream
    except OSError as exc:
        raise FcctlError(
            f"could not write {path}",
            cause=exc.strerror,
            hint="with -o, name a writable folder that has enough free space",
        ) from exc


@click.command(cls=CliCommand)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(allow_dash=True), default="-", help="Write to this file."
)
@click.option("--format", "form", type=click.Choice(FORMATS),
              help="Output format (default: from the file's ending, otherwise json).")  # fmt: skip
def export(cli: Cli, runs: tuple[str, ...], output: str, form: str | None) -> None:
    """Export RUNs (ids, parts of ids, `last`, tags, or `all`) for other programs.

    json: run.json with all documents, one object and line per run. csv, jsonl: one row per benchmark. flashcore: the
    p50, p90, p99 and speedup of the benchmark, as `.results.mission.flashcore.p50`. tar.zst: the whole folders with the
    sha256 of every file, for `fcctl results import` on another machine; the same runs give the same archive, byte for
    byte.
    """
    chosen = form or form_of(output, _ENDINGS, "json", f"--format {'|'.join(FORMATS)}")
    with cli.services() as services:
        from orchestrator.results.look import named, whole

        store, root = services.store, cli.workspace().root
        everything = "all" in runs
        ids = [r.run_id for r in store.rows()] if everything else [i for w in runs for i in named(store, w, root)]
        ids = list(dict.fromkeys(ids))
        shown = (whole(store, run_id) for run_id in ids)  # one at a time: all of them may be a hundred thousand
        if output == "-":
            if chosen == ARCHIVE and (cli.json or sys.stdout.isatty()):
                where = "into JSON output" if cli.json else "to the terminal"
                raise click.UsageError(f"cannot write an archive {where}: name a file with -o")
            _write(shown, chosen, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        with written(Path(output)) as stream:  # on disk, since who has an archive may delete the runs
            _write(shown, chosen, stream)
    cli.show({"written": output, "format": chosen, "runs": ids})
    cli.note(f"wrote {output}")


def _write(shown: Iterable[Shown], form: str, stream: IO[bytes]) -> None:
    import json

    from orchestrator.results import archive
    from orchestrator.results import export as exporting

    writers = {ARCHIVE: archive.write, "csv": exporting.write_csv, "jsonl": exporting.write_jsonl}
    if form in writers:
        writers[form](shown, stream)
        return
    convert = exporting.flashcore if form == "flashcore" else exporting.whole
    for one in shown:
        stream.write(json.dumps(convert(one), allow_nan=False).encode() + b"\n")


@click.command("import", cls=CliCommand)
@click.argument("archives", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Verify the files; import nothing.")
@click.option("--format", "form", type=click.Choice(["archive", "flashcore"]), default="archive", show_default=True,
              help="flashcore: JSON with `.results.mission.flashcore.p50`.")  # fmt: skip
@click.option("--at", metavar="DATE", help="With flashcore: when it was measured (default: the file's `created`).")
@click.option("--gpu", metavar="NAME", help="With flashcore: the GPU it was measured on (default: the file's `gpu`).")
def take_in(cli: Cli, archives: tuple[Path, ...], dry_run: bool, form: str, at: str | None, gpu: str | None) -> None:
    """Import runs from archives of `fcctl results export -o runs.tar.zst`, or old figures from JSON.

    An archive is imported completely or not at all, after the sha256 of every file is verified. Anything but plain
    files of the manifest is refused. A run that is already in the store must be identical.

    With `--format flashcore`, figures that another program measured enter the history: their status is `imported`,
    they are called unverified wherever they are shown, and no comparison with them has a verdict.
    """
    from orchestrator.results.archive import read
    from orchestrator.results.export import import_figures

    if form == "archive" and (at or gpu):
        raise click.UsageError("--at and --gpu need --format flashcore")
    with cli.services() as services:
        store, clock, keep = services.store, services.clock, not dry_run
        for path in archives:
            if form == "archive":
                _refuse_figures(path)
                done = read(store, path, keep=keep)
            else:
                done = import_figures(store, clock, path, form, at, gpu, keep=keep)
            if cli.json:
                new = {"imported": [] if dry_run else done.new, "would_import": done.new if dry_run else []}
                cli.emit({"archive": str(path), **new, **pick(done, "here_already files bytes renamed")})
                continue
            for run_id in done.new:
                click.echo(run_id)
            verb = "would be imported" if dry_run else "imported"
            here = f", {len(done.here_already)} already in the store" if done.here_already else ""
            checked = f"{plural(done.files, 'file')}, {plural(done.bytes, 'byte')} verified"
            cli.note(
                f"{path}: {plural(len(done.new), 'run')} {verb}{here}; {checked if form == 'archive' else 'unverified'}"
            )
            if done.renamed:
                cli.note(
                    f"{plural(done.renamed, 'file')} renamed with underscores, because programs on this"
                    f" computer give the original names a special meaning"
                )


def _refuse_figures(path: Path) -> None:
    if path.suffix.lower() == ".json":
        raise UsageError(
            f"{path} is not an archive of runs",
            cause="its name ends with .json",
            hint=f"to import its figures: fcctl results import --format flashcore {shlex.quote(str(path))}"
            " --at 2026-10-14",
        )


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([hdwmy])", re.IGNORECASE)
_SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0, "m": 30 * 86_400.0, "y": 365 * 86_400.0}


def age(text: str) -> float:
    """Seconds. Raises ValueError."""
    if match := _AGE.fullmatch(text.strip()):
        return float(match[1]) * _SECONDS[match[2].lower()]
    raise ValueError(f"expected an age such as 90d, not {text[:40]!r}")


def size(text: str) -> int:
    """Bytes. Raises ValueError."""
    if match := _SIZE.fullmatch(text.strip()):
        return int(float(match[1]) * 1000 ** ("", "k", "m", "g", "t").index(match[2].lower()))
    raise ValueError(f"expected a size such as 10GB, not {text[:40]!r}")


@click.command(cls=CliCommand)
@click.option(
    "--older-than", type=Parsed(age), metavar="AGE", help="Runs older than 12h, 90d, 8w, 6m (of 30 days) or 1y."
)
@click.option("--max-size", type=Parsed(size), metavar="SIZE",
              help="Oldest runs first, until the remaining runs take no more than SIZE, such as 10GB.")  # fmt: skip
@click.option(
    "--keep-last",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Keep this many newest runs.",
)
@click.option("--keep-best", metavar="N", type=click.IntRange(min=0), default=1, show_default=True,
              help="Keep the runs with this many best times of each benchmark.")  # fmt: skip
@click.option("--job", metavar="JOB", help="Only runs of this job.")
@click.option("--dry-run", is_flag=True, help="Show which runs would be deleted; delete nothing.")
def prune(
    cli: Cli, older_than: float | None, max_size: int | None, keep_last: int, keep_best: int, job: str | None,
    dry_run: bool,
) -> None:  # fmt: skip
    """Delete runs by age or size. Tagged runs are always kept.

    Shows what would be deleted, and asks; without a terminal, add --yes.
    """

    from orchestrator.results.look import Rules, carry_out, plan
    from orchestrator.runs.cost.owners import book_runs
    from orchestrator.runs.transfer import amount

    rules = Rules(older_than, max_size, keep_last, keep_best, job)
    with cli.services() as services:
        planned = plan(services.store, rules, services.clock.now())
        done = bool(planned.doomed) and not dry_run
        if done:
            cli.confirm(_prune_text(planned, "fcctl will delete these runs:"))
            book_runs(services)  # what they cost still counts
            planned = replace(planned, doomed=tuple(carry_out(services.store, planned)))
        elif not dry_run:
            services.store.delete(())  # what a killed prune left
    if cli.json:
        runs = [pick(run, "run_id created status bytes") for run in planned.doomed]
        cli.emit({"deleted": runs if done else [], "would_delete": [] if done else runs, "bytes": planned.bytes,
                  "spared": planned.spared})  # fmt: skip
    elif dry_run and planned.doomed:
        click.echo(_prune_text(planned, "fcctl would delete these runs:"))
    else:
        count = plural(len(planned.doomed), "run")
        done_text = f"{count} deleted, {amount(planned.bytes)} freed" if planned.doomed else "no run to delete"
        cli.note(done_text + _spared(planned))


def _spared(planned: Plan) -> str:
    return f"; {planned.spared} kept (tagged, among the best, or the newest)" if planned.spared else ""


def _prune_text(planned: Plan, head: str) -> str:
    from orchestrator.runs.transfer import amount

    lines = [f"  {run.run_id}  {run.status}  {amount(run.bytes)}" for run in planned.doomed[:30]]
    rest = [f"  ... and {len(planned.doomed) - 30} more"] if len(planned.doomed) > 30 else []
    total = f"{plural(len(planned.doomed), 'run')}, {amount(planned.bytes)}{_spared(planned)}"
    return "\n".join([head, *lines, *rest, total])


REPORT_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".pdf": "pdf"}


@click.command(cls=CliCommand)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--html", "form", flag_value="html", help="One self-contained HTML file.")
@click.option("--md", "form", flag_value="md", help="GitHub-flavoured Markdown; the default.")
@click.option("--pdf", "form", flag_value="pdf", help="PDF, through an installed Chromium or Chrome.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write to this file; its ending chooses the format."
)
@click.option("--charts", "charts_dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Also write every chart to this folder, as SVG and PNG.")  # fmt: skip
@click.option("--dark", is_flag=True, help="Colours of --charts for a dark background.")
def report(
    cli: Cli, runs: tuple[str, ...], form: str | None, output: str | None, charts_dir: str | None, dark: bool
) -> None:
    """Write a report of RUNs: main result, targets, bottlenecks, what to optimize next, and charts.

    Several runs share one report, which compares each with the first; each roofline chart shows one GPU. --json prints
    the report as one document.
    """
    from orchestrator.results.compare.compare import MOST_SIDES, compare_all
    from orchestrator.results.look import chosen
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    output = None if output == "-" else output
    form = form or form_of(output or "", REPORT_ENDINGS, "md", "--html, --md, --pdf")
    if output is None and form == "pdf" and (cli.json or sys.stdout.isatty()):
        raise click.UsageError("cannot write a PDF to the terminal: name a file with -o")
    with cli.services() as services:
        shown = chosen(services.store, runs, cli.workspace().root)
        sides = [one.record.run_id for one in shown[:MOST_SIDES]]
        made = build(shown, compare_all(services.store, sides) if len(sides) > 1 else ())
    pictures = charts(made)
    written = _write_charts(pictures, Path(charts_dir), dark=dark) if charts_dir else {}
    if output is None and cli.json:
        from orchestrator.views.report.outputs import document

        cli.emit(document(made) | ({"charts": sorted(written.values())} if written else {}))
        return
    content = _render(made, pictures, form, _relative(written, output))
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    _replace(Path(output), content)
    if cli.json:
        cli.emit({"written": output, "format": form, "runs": [r.run_id for r in made.runs],
                  "charts": sorted(written.values())})  # fmt: skip
    cli.note(f"wrote {output}" + (f" and {plural(len(written), 'chart')} to {charts_dir}" if written else ""))


def _render(made: Report, pictures: Sequence[Chart], form: str, files: dict[str, str]) -> bytes:
    if form == "md":
        from orchestrator.views.report.outputs import markdown

        return markdown(made, pictures, files).encode()
    from orchestrator.views.report import outputs

    html = outputs.render(made, pictures, made_by=f"fcctl {version()}", for_paper=form == "pdf")
    if form == "html":
        return html.encode()
    from orchestrator.views.report.outputs import print_pdf

    return print_pdf(html)


def _write_charts(pictures: Sequence[Chart], folder: Path, *, dark: bool) -> dict[str, str]:
    """Each chart as SVG and PNG; the SVGs by the charts' names."""
    from orchestrator.views.report import machine_charts

    names = {}
    for chart in pictures:
        _replace(folder / f"{chart.name}.svg", machine_charts.svg_file(chart.spec, dark=dark))
        _replace(folder / f"{chart.name}.png", machine_charts.png_file(chart.spec, dark=dark))
        names[chart.name] = str(folder / f"{chart.name}.svg")
    return names


def _relative(written: dict[str, str], output: str | None) -> dict[str, str]:
    """The charts' places as the Markdown file names them."""
    start = Path(output).parent if output else Path()
    return {name: Path(os.path.relpath(path, start)).as_posix() for name, path in written.items()}


def _replace(path: Path, content: bytes) -> None:
    with written(path, parents=True) as stream:
        stream.write(content)
