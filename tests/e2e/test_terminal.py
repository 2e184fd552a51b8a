"""fcctl in a real terminal: tmux holds it, and what it shows is read off the screen."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import Terminal
from tests.support.workspace import Workspace

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
TICKS = """\
steps:
  - id: build
    run: echo compiling
  - id: spin
    run: |
      for i in $(seq 6000); do
        printf 'tick %d \\033]0;owned\\007\\033[31mred\\033[0m and a line that goes on far beyond the' $i
        printf ' eightieth column to see what happens\\n'
        sleep 0.1
      done
    timeout: 20m
"""
GATED = """\
steps:
  - id: measure
    run: echo measured; echo '{"kind":"metrics","schema_version":1,"metrics":{"regs":168}}' > "$FCCTL_OUT/m.json"
    gates: [{expr: metrics.metrics.regs <= 120, hint: unroll less}]
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "kernels", private_home)
    made.job("ticks", TICKS)
    made.job("gated", GATED)
    return made


@pytest.fixture
def terminal(workspace: Workspace) -> Iterator[Terminal]:
    opened = Terminal(workspace, 80, 24)
    yield opened
    opened.close()


def test_the_live_view_moves_and_leaves_nothing_behind(terminal: Terminal, workspace: Workspace) -> None:
    terminal.type("fcctl run ticks --on local")
    text = terminal.until(lambda t: "[2/2] spin" in t and "tick 1" in t and "CPU" in t)
    assert "✓ build  passed" in text
    assert " of at most 20 min 00 s" in text
    assert "red and a line that goes" in text, "colours of the step do not colour ours"
    assert max(map(len, text.splitlines())) <= 80
    frames = set()
    deadline = time.monotonic() + 240
    while len(frames) < 3 and time.monotonic() < deadline:
        frames |= {line[0] for line in terminal.screen().splitlines() if "[2/2]" in line}  # none in mid-frame
        time.sleep(0.05)
    assert len(frames) >= 3, "the spinner turns"
    terminal.press("C-c")
    end = terminal.until(lambda t: t.rstrip().endswith("ready>"))
    (run_id,) = workspace.active()
    assert end.splitlines()[-4:] == [
        f"detached: run {run_id} continues on the machine",
        f"  follow it:  fcctl attach {run_id}",
        f"  stop it:    fcctl cancel {run_id}",
        "ready>",
    ]
    assert not re.search(r"tick \d", end)
    assert "[2/2]" not in end
    listed = terminal.after("fcctl ps")
    assert re.search(rf"{run_id} +(ticks +)?(local +)?running +spin 2/2", listed)
    terminal.type("fcctl logs -f --step spin")
    terminal.until(lambda t: len(re.findall(r"tick \d+ red", t)) > 3)
    terminal.press("C-c")
    terminal.until(lambda t: t.rstrip().endswith("ready>"))
    cancelled = terminal.after(f"fcctl cancel {run_id}")
    assert "code 0" in cancelled
    shown = terminal.after("fcctl results show")
    assert "Results  results/runs/" in shown
    assert "    |  tick" in shown


@pytest.mark.parametrize("no_color", [False, True])
def test_a_failed_gate_ends_on_what_to_do(terminal: Terminal, no_color: bool) -> None:
    text = terminal.after(("NO_COLOR=1 " if no_color else "") + "fcctl run gated --on local")
    end = text[text.index("Failed  measure") :]
    assert "gate: metrics.metrics.regs <= 120  is 168" in end
    assert "hint: unroll less" in end
    assert "    |  measured" in end
    assert "code 100" in end
    colours = re.findall(r"\x1b\[[0-9;]*3[0-7][0-9;]*m", terminal.screen("-e"))
    assert bool(colours) is not no_color


def test_an_error_is_not_hidden_by_the_live_view(terminal: Terminal, workspace: Workspace) -> None:
    with (workspace.root / "fcctl.toml").open("a") as config:
        config.write('\n[targets.gone]\nkind = "ssh"\nhost = "127.0.0.1"\nport = 1\n')
    text = terminal.after("fcctl run gated --on gone")
    lines = [line for line in text.splitlines() if line.startswith(("error:", "cause:", "hint:"))]
    assert lines[0] == "error: cannot connect to port 1 of 127.0.0.1:1"
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "hint"]
    assert "code 6" in text
    assert not re.search("[⠁-⣿]", text), "no spinner is left"
