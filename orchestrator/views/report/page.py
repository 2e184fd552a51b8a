"""A report as one HTML file without script or network, and as PDF through the installed Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.base.errors import FcctlError, NotFoundError
from orchestrator.views.blocks import Chart
from orchestrator.views.html import environment, styles
from orchestrator.views.report import words
from orchestrator.views.report.model import Report
from orchestrator.views.report.sections import sections

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


def print_pdf(html: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """``html``, which needs nothing from elsewhere, as PDF.

    Raises:
        NotFoundError: no Chromium here.
        FcctlError: it failed, or took longer than ``timeout_s``.
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
            done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as exc:
            raise _failed(f"the program did not end within {timeout_s:.0f} s") from exc
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
