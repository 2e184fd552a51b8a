"""fcctl in a real terminal: tmux holds it, and what it shows is read off the screen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.scripts import launcher
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


class Terminal:
    """One tmux window with a shell in a workspace."""

    def __init__(self, workspace: Workspace, columns: int, rows: int) -> None:
        self._typed = 0
        self._socket = ["tmux", "-f", "/dev/null", "-S", str(workspace.home.parent / "screen")]
        env = {**workspace.env(), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env.pop("COLUMNS")
        env.pop("TMUX", None)
        bin_folder = launcher(workspace.home.parent / "bin").parent
        env["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
        (bin_folder / "bashrc").write_text("PS1='ready> '\n")
        size = ["-x", str(columns), "-y", str(rows)]
        argv = [*self._socket, "new-session", "-d", *size, f"bash --noprofile --rcfile {bin_folder}/bashrc"]
        subprocess.run(argv, cwd=workspace.root, env=env, check=True)
        self.until(lambda text: "ready>" in text)

    def type(self, line: str) -> None:
        subprocess.run([*self._socket, "send-keys", "clear", "Enter"], check=True)
        subprocess.run([*self._socket, "send-keys", line, "Enter"], check=True)

    def press(self, key: str) -> None:
        subprocess.run([*self._socket, "send-keys", key], check=True)

    def screen(self, *options: str) -> str:
        argv = [*self._socket, "capture-pane", "-p", *options]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.rstrip("\n")

    def until(self, there: Callable[[str], object], seconds: float = 240.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.screen()
            if there(text):
                return text
            time.sleep(0.05)
        raise AssertionError(f"not seen within {seconds:g} s; the screen:\n{self.screen()}")

    def after(self, line: str, seconds: float = 240.0) -> str:
        """Type a line, wait for the prompt to come back, return the screen."""
        self._typed += 1  # the screen may still be that of the line before
        self.type(f"{line}; echo code $? of {self._typed}")
        return self.until(lambda text: re.search(rf"^code \d+ of {self._typed}$", text, re.MULTILINE), seconds)

    def close(self) -> None:
        subprocess.run([*self._socket, "kill-server"], check=False, capture_output=True)


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
