"""The dashboard in a real browser: every page, at a desk's width and at a phone's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import EARLIER, OLDER, tab
from tests.support.dashboard import Dashboard
from tests.support.reference_run import H200
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

#: On one worker, one after the other: they share a dashboard.
pytestmark = [pytest.mark.full, pytest.mark.group("browser")]

RUN = H200.name
PAGES = {
    "/": "Overview",
    "/history": "Runs",
    "/history?job=evidence&status=passed": "Runs",
    "/trends": "Trends",
    "/history?q=h200&sort=fastest": "Runs",
    "/compare": "Compare",
    f"/compare?run={OLDER}&run={RUN}": "Compare",
    f"/compare?run={OLDER}&run={RUN}&run={EARLIER}": "Compare",
    "/hosts": "Hosts",
    "/schedules": "Schedules",
    "/spending": "Spending",
    "/progress": "Progress",
    "/spending?by=job": "Spending",
    f"/runs/{RUN}": "evidence on gpu-host",
    f"/runs/{RUN}/report": "evidence on NVIDIA H200",
}


def overflow(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


#: Lines of each note beside the picture of a trend.
NOTE_LINES = "[...document.querySelectorAll('td:has(.spark) small')].map(note => note.getClientRects().length)"


def drawn(page: Any) -> None:
    """Wait for the parts that come later."""
    for part in page.locator(".part").all():
        part.locator("> .wait").wait_for(state="detached", timeout=90_000)


#: Pages of docs/dashboard.md.
PICTURES = {
    "/": "overview",
    "/history": "runs",
    f"/compare?run={OLDER}&run={RUN}": "compare",
    "/trends": "trend",
    f"/runs/{RUN}": "run",
    f"/runs/{RUN}/report": "report",
    "/hosts": "hosts",
    "/schedules": "schedules",
    "/spending": "spending",
    "/progress": "progress",
}


def picture(path: str, desk: Any, phone: Any) -> None:
    """``make pictures`` keeps a picture of what is looked at."""
    if path in PICTURES and (folder := os.environ.get("FCCTL_PICTURES")):
        for page, kind in ((desk, "light"), (phone, "phone")):
            page.evaluate("document.querySelector('body > footer').hidden = true")  # it names a folder of the test
            page.screenshot(path=f"{folder}/{PICTURES[path]}-{kind}.png")
        desk.emulate_media(color_scheme="dark")
        desk.screenshot(path=f"{folder}/{PICTURES[path]}-dark.png")
        desk.emulate_media(color_scheme="light")


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    files = pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python")
    return next(Path(files.__file__).parent.rglob("axe.min.js")).read_text()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_accessible_at_both_widths(screens: tuple[tab, tab], axe: str, path: str) -> None:
    pages = [screen.page for screen in screens]
    for one in pages:
        assert one.goto(f".{path}").status == 200
        assert one.locator("h1").inner_text() == PAGES[path]
        drawn(one)
        assert overflow(one) <= 0, "the page scrolls sideways"
        assert one.evaluate("shifts") == [], "what comes later moves nothing that is read already"
        assert set(one.evaluate(NOTE_LINES)) <= {1}, "a trend's note is not broken into two lines"
        assert one.evaluate("getComputedStyle(document.body).fontFamily.length") > 0
    light, dark = (one.evaluate("getComputedStyle(document.body).backgroundColor") for one in pages)
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(18, 23, 29)"
    picture(path, *pages)
    phone = pages[1]
    phone.evaluate(axe)
    for scheme in ("light", "dark"):  # contrast, names, headings, landmarks
        phone.emulate_media(color_scheme=scheme)
        rules = "axe.run().then(r => [r.passes.length, r.violations.map(v => [v.id, v.nodes.map(n => n.html)])])"
        passes, violations = phone.evaluate(rules)
        assert (passes > 5, violations) == (True, []), scheme
    assert [screen.complaints for screen in screens] == [[], []]


def test_the_navigation_says_where_one_is_and_works_by_keyboard(page: Any) -> None:
    page.goto("./")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.get_by_role("navigation").get_by_role("link", name="Schedules").count() == 1, "there is one"
    page.get_by_role("navigation").get_by_role("link", name="Compare").click()
    assert page.get_by_role("navigation").locator("[aria-current=page]").inner_text() == "Compare"


def test_runs_are_chosen_in_a_list_and_compared(page: Any) -> None:
    page.goto("./history")
    compare = page.get_by_role("button", name="Compare")
    assert compare.is_disabled()
    page.get_by_label(f"Compare {RUN}").check()
    assert page.locator("#pick [role=status]").inner_text() == "1 chosen; choose one more."
    page.get_by_label(f"Compare {OLDER}").check()
    compare.click()
    assert page.get_by_label(f"Compare {OLDER}").is_checked(), "the choice can be changed on the page of the answer"
    assert "Compared with " + OLDER in page.locator("main").inner_text(), "the older run is the one before"
    drawn(page)
    page.get_by_text("Figures of all benchmarks").click()
    mission = page.get_by_role("row").filter(has=page.get_by_role("cell", name="mission", exact=True))
    assert "faster" in (row := mission.filter(has_text="flagship").inner_text())
    assert "-20.0 %" in row
    same = mission.filter(has_text="stage5")
    assert "inconclusive" in same.inner_text(), "one launch a side says little of 5 %"
    assert page.locator(".bars li.good").count() > 0, "a picture of the intervals"
    assert overflow(page) <= 0


def test_a_phone_answers_a_comparison_on_two_screens(screens: tuple[tab, tab]) -> None:
    """What explains it, all figures and the list to choose from are folded below the picture."""
    page = screens[1].page
    page.goto(f"./compare?run={OLDER}&run={RUN}")
    drawn(page)
    assert page.evaluate("document.documentElement.scrollHeight") < 3 * 740
    assert page.locator("main details[open]").count() == 0
    assert page.locator(".bars li").first.bounding_box()["y"] < 740, "the picture begins on the first screen"
    page.get_by_text("Figures of all benchmarks").click()
    assert page.locator("main details[open] tbody tr").first.is_visible()
    assert overflow(page) <= 0


def test_the_list_is_searched_and_walked_by_keys(page: Any) -> None:
    page.goto("./")
    page.keyboard.press("/")
    page.wait_for_url("**/history")
    page.locator("#search:focus").wait_for()
    page.keyboard.type("h200 evidence")
    page.keyboard.press("Enter")
    page.wait_for_url("**/history?q=h200+evidence**")
    assert page.get_by_role("checkbox").count() == 3
    focused = "document.activeElement.closest('tr').querySelector('input').value"
    page.keyboard.press("j")
    assert page.evaluate(focused) == RUN
    for _ in range(4):
        page.keyboard.press("j")
    assert page.evaluate(focused) == EARLIER, "the last row is the end"
    page.keyboard.press("x")
    page.keyboard.press("k")
    page.keyboard.press("x")
    page.keyboard.press("?")
    assert page.get_by_role("dialog").get_by_text("compare the chosen runs").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.wait_for_url("**/compare?run=**")
    page.goto("./history?q=nothing+like+this")
    assert "No matching runs." in page.locator("main").inner_text()


def test_a_benchmark_over_the_runs(page: Any) -> None:
    """A drag over its chart zooms, two clicks compare."""
    page.goto("./trends?benchmark=mission&variant=flagship")
    page.locator("figure .wide svg").wait_for()
    assert "best 4.51 µs" in page.locator("figcaption").inner_text()
    points = page.locator("figure svg path:has(title)")
    at = [points.nth(i).bounding_box() for i in range(3)]
    page.mouse.move(at[1]["x"] - 6, at[1]["y"] + 20)
    page.mouse.down()
    page.mouse.move(at[2]["x"] + 20, at[1]["y"] + 30)
    page.mouse.up()
    page.wait_for_url(f"**benchmark=mission&variant=flagship&run={OLDER}&run={RUN}")
    page.locator("figure .wide svg").wait_for()
    assert page.locator("figcaption").inner_text().startswith("2 runs")
    page.get_by_role("link", name="Show all runs").click()
    page.locator("figure .wide svg").wait_for()
    for i in (0, 2):
        point = points.nth(i).bounding_box()
        page.mouse.click(point["x"] + 8, point["y"] + 2)
    page.wait_for_url("**/compare?**")
    page.get_by_text(f"Compared with {EARLIER}").wait_for()
    assert page.get_by_label(f"Compare {RUN}").is_checked()


def test_the_report_shows_all_of_its_tables_and_leads_back(browser: Any, opened: Dashboard, state: Any) -> None:
    with tab(browser, opened, state, viewport={"width": 1440, "height": 900}) as page:
        page.goto(f"./runs/{RUN}/report")
        wider = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert page.evaluate(f"{wider}.map(e => e.ariaLabel)") == []
        page.get_by_role("link", name="Back to the dashboard").click()
        assert page.locator("h1").inner_text() == "evidence on gpu-host"
        assert "passed · NVIDIA H200 · " in page.locator("main p").first.inner_text()


def test_files_of_a_run_are_opened_or_downloaded(page: Any, workspace: Workspace) -> None:
    """A browser shows text; what it could take for a page is downloaded."""
    (workspace.root / f"results/runs/{RUN}/steps/bench/out/<b>.html").write_text("<script>window.hacked=1</script>")
    page.goto(f"./runs/{RUN}")
    page.locator("summary", has_text=" files").filter(visible=True).last.click()
    files = page.locator("#files")
    link = files.get_by_role("link", name="steps/bench/out/<b>.html")
    with page.expect_download() as download:
        link.click()
    assert Path(download.value.path()).read_text() == "<script>window.hacked=1</script>"
    text = files.get_by_role("link", name="steps/bench/out/benchmark-flagship.json").get_attribute("href")
    answer = page.request.get(text)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert '"benchmarks"' in answer.text()
    for bad in ("..%2f..%2ffcctl.toml", "run.json", "steps", "steps/none"):
        assert page.request.get(f"./runs/{RUN}/files/{bad}").status == 404


def test_a_phone_shows_the_newest_runs_of_a_trend(screens: tuple[tab, tab]) -> None:
    page = screens[1].page
    page.goto("./trends")
    drawn(page)
    at_the_end = "e => e.scrollLeft > 0 && e.scrollLeft + e.clientWidth >= e.scrollWidth - 1"
    assert page.locator("figure > .wide").first.evaluate(at_the_end)


def test_a_mistyped_run_is_told_politely(browser: Any, opened: Dashboard, state: Any) -> None:
    context = browser.new_context(storage_state=state, base_url=opened.pages)
    page = context.new_page()
    assert page.goto("./compare?run=nope&run=last").status == 404
    assert "no run has the name 'nope'" in page.locator("h1").inner_text()
    assert page.goto("./runs/nope").status == 404
    context.close()


def test_nobody_gets_in_without_the_link(browser: Any, opened: Dashboard) -> None:
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(opened.base).status == 401
    assert page.goto(opened.link).status == 403, "it was used already"
    context.close()


def test_a_run_is_watched_from_start_to_end(page: Any, workspace: Workspace) -> None:
    page.goto("./")
    assert "No active runs" in page.locator("#live").inner_text()
    workspace.fcctl("run", "talk", "--on", "here", "-d")
    page.get_by_role("link", name="talk on here").first.click()
    page.wait_for_url("**/runs/*talk*")
    page.locator("#link", has_text="live").wait_for()
    page.locator("#log", has_text="line 2 ").wait_for()
    page.locator(".steps [aria-current=step]", has_text="talk").wait_for()
    assert page.locator(".steps .past").inner_text() == "build warned", "a step that has ended says how"
    page.locator("#log", has_text="line 5 ").wait_for()
    assert page.evaluate("shifts") == [], "neither the log nor the machine's figures move anything"
    assert "<img src=x" in page.locator("#log").inner_text(), "what a host writes is shown as it is"
    assert page.locator("#log img").count() == 0
    page.locator("#state .spark").wait_for()
    (workspace.home / "go").touch()
    page.get_by_role("heading", name="Steps", exact=True).wait_for()
    page.locator("#steps").get_by_role("link", name="talk").click()
    assert "<script>window.hacked=1</script> the end" in page.locator("pre").inner_text()
    assert page.evaluate("window.hacked") is None


def test_a_run_is_cancelled(page: Any, workspace: Workspace) -> None:
    workspace.fcctl("run", "endless", "--on", "here", "-d")
    (run_id,) = workspace.active()
    page.goto(f"./runs/{run_id}")
    page.locator("#log", has_text="waiting").wait_for()
    page.get_by_text("Cancel this run").click()
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("heading", name="Steps", exact=True).wait_for()
    assert workspace.runs()[run_id]["status"] == "cancelled"
    assert page.locator("main .word").first.inner_text() == "cancelled"
    assert page.get_by_label("End of the log of wait").inner_text() == "waiting"


def test_a_run_is_run_again(page: Any, workspace: Workspace) -> None:
    workspace.fcctl("run", "quick", "--on", "here")
    page.goto("./history")
    page.get_by_role("link", name="quick on here").first.click()
    page.get_by_role("link", name="Run again …").click()
    assert "Run quick again on here?" in page.locator("h1").inner_text()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/*quick*")
    runs = lambda: [r for r in workspace.runs().values() if r["job"] == "quick"]  # noqa: E731
    wait_for(lambda: len(runs()) == 2)
    assert {r["status"] for r in runs()} == {"passed"}
    page.get_by_role(
        "heading", name="Steps", exact=True
    ).wait_for()  # it is home, and its page has become that of a past run


def test_a_lost_server_is_said(page: Any, browser: Any, workspace: Workspace) -> None:
    from tests.support.dashboard import dashboard

    with dashboard(workspace) as own:
        context = browser.new_context()
        tab = context.new_page()
        tab.goto(own.link)
        workspace.fcctl("run", "endless", "--on", "here", "-d")
        (run_id,) = workspace.active()
        tab.goto(f"{own.pages}runs/{run_id}")
        tab.locator("#link", has_text="live").wait_for()
    tab.locator("#link", has_text="connection lost").wait_for()
    context.close()
    workspace.fcctl("cancel", run_id)


def test_only_what_the_page_is_to_blame_for_is_a_complaint(browser: Any, opened: Dashboard, state: Any) -> None:
    with tab(browser, opened, state) as page:
        page.route("**/held", lambda _route: None)
        page.goto("./")
        page.evaluate("void fetch('/held')")
        page.goto("./compare")
        page.evaluate("void fetch('/held')")
    broken = tab(browser, opened, state)
    with broken as page:
        page.route("**/broken", lambda route: route.abort("connectionreset"))
        page.goto("./")
        page.evaluate("fetch('/broken').catch(() => 0)")
        assert {complaint.split(":")[0] for complaint in broken.complaints} == {"failed", "error"}
        broken.complaints.clear()
