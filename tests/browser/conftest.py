"""A real headless Chromium. Without one these tests are skipped, and say why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.views.report.outputs import find_chromium
from tests.conftest import home_of_its_own
from tests.support import reference_run
from tests.support.dashboard import Dashboard, dashboard
from tests.support.workspace import Workspace

JOBS = {
    "quick": "steps:\n  - id: only\n    run: echo done\n",
    "talk": (
        'steps:\n  - id: build\n    run: echo compiling; exit 7\n    exit_codes: {"7": warned}\n'
        "  - id: talk\n    run: |\n"
        "      for i in 1 2 3 4 5 6; do echo \"line $i <img src=x onerror='window.hacked=1'>\"; sleep 0.5; done\n"
        "      until [ -e \"$HOME/go\" ]; do sleep 0.1; done\n      echo '<script>window.hacked=1</script> the end'\n"
    ),
    "gated": "steps:\n  - id: a\n    run: echo\n    gates: ['benchmark.benchmarks[0].stats.p50 < 100']\n",
    "endless": "steps:\n  - id: wait\n    run: echo waiting; sleep 600\n",
}


SCHEDULE = '[schedules.nightly]\njob = "quick"\non = "here"\ncron = "0 2 * * 1-5"\nbudget_usd = 1.0\n'
PHASE = '[phases.first]\njob = "gated"\nhours = 2\n\n'


@pytest.fixture(scope="module")  # no longer: while Playwright is there, no other test may have an event loop
def browser() -> Iterator[Any]:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium on PATH: apt install chromium, then make browser")
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=args)
        yield found
        found.close()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """With two runs of an H200, one of them slower, and jobs to start."""
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch) as home:
        made = Workspace(tmp_path_factory.mktemp("browser") / "ws", home)
        reference_run.install(made.root / "results")
        for older in (EARLIER, OLDER):
            slower(reference_run.install(made.root / "results", older))
        config = made.root / "fcctl.toml"
        config.write_text(
            config.read_text().replace('kind = "local"\n', 'kind = "local"\nusd_per_hour = 0.75\n') + PHASE + SCHEDULE
        )
        for name, text in JOBS.items():
            made.job(name, text)
        yield made


EARLIER = "20261121t070000z-evidence-gpu-host-0ddba0"
OLDER = "20261121t080000z-evidence-gpu-host-0ddba1"


def slower(folder: Path) -> None:
    """The run in ``folder`` with the flagship taking a quarter longer, in every sample."""
    import json

    path = folder / "steps/bench/out/benchmark-flagship.json"
    document = json.loads(path.read_text())
    for entry in document["benchmarks"]:
        if entry["variant"] == "flagship":
            entry["samples"] = [1.25 * sample for sample in entry["samples"]]
            entry["stats"] = {k: v if k == "n" else 1.25 * v for k, v in entry["stats"].items()}
    path.write_text(json.dumps(document))


@pytest.fixture(scope="module")
def opened(workspace: Workspace, browser: Any) -> Iterator[Dashboard]:
    with dashboard(workspace) as running:
        yield running


@pytest.fixture(scope="module")
def state(opened: Dashboard, browser: Any) -> Any:
    """The cookie, got as a person gets it: by opening the link."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(opened.link)
    assert page.url == opened.pages
    found = context.storage_state()
    context.close()
    return found


@pytest.fixture
def page(browser: Any, opened: Dashboard, state: Any) -> Iterator[Any]:
    """A page of the dashboard that fails the test if anything is said on the console, or asked for elsewhere."""
    with tab(browser, opened, state) as made:
        yield made


@pytest.fixture(scope="module")
def screens(browser: Any, opened: Dashboard, state: Any) -> Iterator[tuple[tab, tab]]:
    """A desk's tab and one 360 pixels wide and dark, for what is only looked at: each new one takes the browser a
    second of a processor."""
    desk = tab(browser, opened, state)
    size = {"width": 360, "height": 740}
    phone = tab(browser, opened, state, viewport=size, color_scheme="dark")
    with desk, phone:
        yield desk, phone


#: Collects what moved on a page without anybody's doing.
SHIFTS = """window.shifts = []; new PerformanceObserver((list) => { for (const e of list.getEntries())
  if (!e.hadRecentInput) shifts.push([e.value, e.sources.map((s) => `${s.node?.nodeName} ${s.node?.className}`)]);
}).observe({type: "layout-shift", buffered: true});"""


class tab:
    def __init__(self, browser: Any, opened: Dashboard, state: Any, **options: Any) -> None:
        self._context = browser.new_context(storage_state=state, base_url=opened.pages, **options)
        self._base = opened.base
        self.complaints: list[str] = []
        self.page: Any = None

    def __enter__(self) -> Any:
        self.page = self._context.new_page()
        self.page.add_init_script(SHIFTS)
        self.page.set_default_timeout(90_000)  # a comparison on a machine that is busy
        listen(self.page, self.complaints, self._base)
        return self.page

    def __exit__(self, *error: object) -> None:
        self._context.close()
        if error[0] is None:
            assert self.complaints == []


def listen(page: Any, complaints: list[str], base: str) -> None:
    said: Callable[[Any], None] = lambda m: complaints.append(f"{m.type}: {m.text}") if m.type != "debug" else None  # noqa: E731
    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}") or dialog.dismiss())
    page.on("request", lambda r: r.url.startswith((base, "data:", "file:")) or complaints.append(f"asked for {r.url}"))
    page.on("requestfailed", lambda r: r.failure == LEFT or complaints.append(f"failed: {r.url} {r.failure}"))


#: What the browser itself breaks off, such as an icon still on its way, because somebody leaves or closes the page.
LEFT = "net::ERR_ABORTED"
