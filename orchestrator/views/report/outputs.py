"""A report as Markdown, as JSON, as one HTML file without script or network, and as PDF through the installed Chromium;
and the files that a run keeps about itself: its report and a manifest."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import FcctlError, NotFoundError
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean
from orchestrator.base.sanitize import markdown as escape
from orchestrator.results.documents import load
from orchestrator.results.levers import Finding
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord
from orchestrator.results.timings import Ratio
from orchestrator.views.blocks import Chart, markdown_page
from orchestrator.views.blocks import markdown as as_markdown
from orchestrator.views.figures import gate_value
from orchestrator.views.html import environment, styles
from orchestrator.views.report import words
from orchestrator.views.report.build import build
from orchestrator.views.report.model import Report, Row, Tuned
from orchestrator.views.report.sections import sections


def markdown(report: Report, charts: Sequence[Chart] = (), pictures: Mapping[str, str] | None = None) -> str:
    """The report; ``pictures`` names the file (or address) of each chart that is to be shown."""
    files = pictures or {}
    lines = [" ".join(escape(one) for one in words.verdict(report)), ""]
    for section in sections(report, [chart for chart in charts if chart.name in files]):
        lines += [f"## {escape(section.title)}", "", *as_markdown(section.blocks, files)]
    return markdown_page(words.title(report), lines)


def document(report: Report) -> dict[str, Any]:
    """Plain values: top line, other tables, targets, profiles with their findings, runs with their cost."""
    return {
        "verdict": list(words.verdict(report)),
        "runs": [
            {**pick(run, "run_id gpu"), **pick(run.record, "seconds status"), **pick(run.record.cost, "usd emulated"),
             "job": clean(run.record.job, 60), "target": clean(run.record.target, 40), "machine": dict(run.machine),
             "cost": [line.model_dump() for line in run.record.cost.breakdown], "problems": list(run.problems)}
            for run in report.runs
        ],
        "tables": [
            {**pick(table, "machine case mode unit"), "rows": [_row(row) for row in table.rows]}
            for table in report.tables
        ],
        "targets": [
            {"run_id": run.run_id, "step": clean(step.id, 40), "expr": words.expression(gate),
             "value": gate_value(gate.value), "verdict": gate.verdict}
            for run, step, gate in words.gates(report)
        ],
        "profiles": [
            {"run_id": p.run, **pick(p, "label kernel shape metrics stalls targets")}
            for p in report.profiles
            if p.metrics
        ],
        "levers": [
            {"label": one.label, "findings": [_finding(shape, finding) for shape, finding in one.findings]}
            for one in words.levers(report)
        ],
        "tunings": [_tuning(one) for one in report.tunings],
    }  # fmt: skip


def _finding(shape: str, finding: Finding) -> dict[str, Any]:
    facts = [{"name": name, "value": value, "threshold": threshold} for name, value, threshold in finding.facts]
    return {
        **pick(finding, "rule bottleneck lever"), "shape": shape, "impact": round(finding.impact, 1), "facts": facts,
    }  # fmt: skip


def _tuning(one: Tuned) -> dict[str, Any]:
    result = one.result
    return {
        "run_id": one.run, **pick(one, "label machine"), **pick(result, "complete trials"),
        "states": dict(result.states), "facts": dict(one.facts),
        "curves": [{"strategy": c.strategy, "best": c.best, "curve": list(c.curve)} for c in one.curves],
        "elites": [
            {**pick(e, "trial verdict"), "params": dict(e.params), "searched": _ratio(e.searched),
             "held_out": _ratio(e.held_out)}
            for e in result.elites
        ],
        "reasons": [{"state": s, "reason": r, "trials": n} for s, r, n in result.reasons],
    }  # fmt: skip


def _ratio(ratio: Ratio | None) -> dict[str, float | None] | None:
    return None if ratio is None else pick(ratio, "value low high")


def _row(row: Row) -> dict[str, Any]:
    return {
        "run_id": row.run, **pick(row, "label stats status roofline_pct roofline_bound"), "reference": row.is_reference,
        "speedup": {against: _speedup(ratio) for against, ratio in row.against.items()},
        "max_err": row.correctness.max_err if row.correctness else None,
        "grade": row.grade.letter if row.grade else None,
    }  # fmt: skip


def _speedup(ratio: Ratio) -> dict[str, float | bool | None]:
    """Their time over ours, with its 95 % interval where the two were timed in turns."""
    low, high = 1 / ratio.high if ratio.high else None, 1 / ratio.low if ratio.low else None
    return {"value": 1 / ratio.value, "low": low, "high": high, "paired": ratio.paired}


MANIFEST, SUMMARY = "artifacts/manifest.yaml", "artifacts/reports/summary.md"


def files(record: RunRecord, folder: Path, settings: Mapping[str, str]) -> dict[str, bytes]:
    """The manifest and the report, as bytes by their path within the run.

    Raises:
        FcctlError: they cannot be made of what is in ``folder``.
    """
    try:
        summary = markdown(build([Shown(record, folder, load(record, folder))])).encode()
        return {SUMMARY: summary, MANIFEST: manifest(record, folder, settings, {SUMMARY: summary})}
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise FcctlError(
            "the report could not be written",
            cause=f"{type(error).__name__}: {error}",
            hint="see the run: fcctl results show",
        ) from error


def manifest(record: RunRecord, folder: Path, settings: Mapping[str, str], more: Mapping[str, bytes]) -> bytes:
    """``manifest.yaml``: what the run was, of which source and where, and each of its artifacts with its sha256."""
    import yaml

    content = {
        "schema_version": 1, "run_id": record.run_id, "job": record.job, "title": record.title, "target": record.target,
        "status": record.status, "started": record.started, "finished": record.finished,
        "source": record.source.model_dump(mode="json"), "settings": dict(settings), "host": _plain(record.host),
        "steps": [{"id": s.id, "status": s.status, "seconds": round(s.duration_s, 1)} for s in record.steps],
        "cost_usd": record.cost.usd,
        "files": sorted([*_artifacts(folder), *map(_entry, more, more.values())], key=lambda e: str(e["path"])),
    }  # fmt: skip
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _artifacts(folder: Path) -> Iterator[dict[str, Any]]:
    root = folder / "artifacts"
    for path in sorted(root.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and name not in (MANIFEST, SUMMARY):
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            yield {"path": name.removeprefix("artifacts/"), "bytes": path.stat().st_size, "sha256": digest}


def _entry(name: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"path": name.removeprefix("artifacts/"), "bytes": len(content), "sha256": digest}


def _plain(value: Any) -> Any:
    """What a host said, without control characters."""
    if isinstance(value, Mapping):
        return {clean(k, 80): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value[:100]]
    return clean(value, 200) if isinstance(value, str) else value


#: Names on PATH, and where macOS keeps applications.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
TIMEOUT_S = 90.0


def find_chromium() -> str | None:
    """The program, or None: ``FCCTL_CHROMIUM`` if set, else the first of :data:`NAMES`, else one of macOS's."""
    named = os.environ.get("FCCTL_CHROMIUM")
    if named:
        return shutil.which(named)
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program or sys.platform != "darwin":
        return program
    return next((path for path in MAC if Path(path).is_file()), None)


def print_pdf(html: str) -> bytes:
    """``html``, which needs nothing from elsewhere, as PDF.

    Raises:
        NotFoundError: no Chromium here.
        FcctlError: it failed, or took longer than :data:`TIMEOUT_S`.
    """
    program = find_chromium()
    if program is None:
        raise NotFoundError(
            "fcctl found no Chromium or Chrome to print the PDF",
            cause="none of " + ", ".join(NAMES[:4]) + " is on PATH",
            hint="apt install chromium (or brew install --cask chromium); or set FCCTL_CHROMIUM to another program; "
            "or use --html and print it from a browser",
        )
    with tempfile.TemporaryDirectory(prefix="fcctl-pdf-") as folder:
        page, pdf = Path(folder) / "report.html", Path(folder) / "report.pdf"
        page.write_text(html, encoding="utf-8")
        argv = [program, *_options(Path(folder)), f"--print-to-pdf={pdf}", page.as_uri()]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as exc:
            raise _failed(f"the program did not end within {TIMEOUT_S:.0f} s") from exc
        except OSError as exc:
            raise _failed(f"{program}: {exc.strerror}") from exc
        if done.returncode or not pdf.is_file():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise _failed(last[0])
        return pdf.read_bytes()


def _options(folder: Path) -> list[str]:
    options = [
        "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking",
        "--no-pdf-header-footer", f"--user-data-dir={folder / 'profile'}",
    ]  # fmt: skip
    # Chromium has no sandbox for root. The page is ours, holds no script, and its policy allows none.
    return [*options, "--no-sandbox"] if os.geteuid() == 0 else options


def _failed(cause: str) -> FcctlError:
    return FcctlError(
        "Chromium could not print the report", cause=cause, hint="use --html, and print it from a browser"
    )


#: Nothing but the page's own styles: should an escape ever fail, there is still no script that could run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render(
    report: Report, charts: Sequence[Chart], *, made_by: str = "fcctl", for_paper: bool = False, back: str = ""
) -> str:
    """The page. ``for_paper`` opens what a reader on a screen would unfold, but for the pictures' numbers. ``back`` is
    the address of the run's page.

    Raises:
        FcctlError: Jinja2 or vl-convert is not installed.
    """
    template = environment().get_template("report.html.j2")
    from markupsafe import Markup  # it comes with Jinja2, and so does the error without it

    return template.render(
        title=words.title(report), verdict=" ".join(words.verdict(report)), sections=sections(report, charts),
        several=len(report.runs) > 1, made_by=made_by, for_paper=for_paper, policy=POLICY, back=back,
        style=Markup(styles("report")), root=None, level=3,  # noqa: S704  files of ours
    )  # fmt: skip
