"""The report as a file: opened from disk, without a network, in both schemes, on paper, and read aloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import listen
from tests.support.reference_run import H200
from tests.support.workspace import Workspace

pytestmark = [pytest.mark.full, pytest.mark.group("browser")]


@pytest.fixture(scope="module")
def report(workspace: Workspace) -> Path:
    workspace.fcctl("results", "report", H200.name, "-o", "report.html")
    return workspace.root / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_offline_in_both_schemes(browser: Any, report: Path, scheme: str) -> None:
    complaints: list[str] = []
    context = browser.new_context(offline=True, color_scheme=scheme)
    page = context.new_page()
    listen(page, complaints, "file:")
    page.goto(report.as_uri())
    assert page.locator("h1").inner_text() == "evidence on NVIDIA H200"
    assert page.locator("figure .wide svg").count() == 7
    for i in range(7):
        box = page.locator("figure .wide svg").nth(i).bounding_box()
        assert box["width"] > 500
        assert box["height"] > 80
    ink = page.locator("figure .wide svg text").first.evaluate("e => getComputedStyle(e).fill")
    assert ink == {"light": "rgb(27, 36, 48)", "dark": "rgb(230, 235, 241)"}[scheme]
    assert page.locator("figure .wide svg title").count() > 50, "marks say their values"
    context.close()
    assert complaints == []


def test_it_fits_a_phone(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_a_screen_reader_hears_words_for_every_picture(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    pictures = page.get_by_role("img")
    assert pictures.count() == 7
    for i in range(7):
        assert "The numbers are in the table below." in pictures.nth(i).get_attribute("aria-label")
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("table", name="Times on mission (1,8,512,64), hot").count() == 1
    page.get_by_text("Numbers of this chart").first.click()
    assert page.get_by_role("table", name="Latency distributions: values").is_visible()
    page.close()


def test_paper_is_light_and_has_no_foldings(browser: Any, report: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(report.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.get_by_text("Numbers of this chart").first.is_visible()
    page.close()
