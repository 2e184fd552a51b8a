"""fcctl in a real terminal: tmux holds it, and what it shows is read off the screen."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable

from tests.support.scripts import launcher
from tests.support.waiting import GUARD_S
from tests.support.workspace import Workspace


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

    def until(self, there: Callable[[str], object]) -> str:
        """The screen as soon as it is so."""
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            text = self.screen()
            if there(text):
                return text
            time.sleep(0.05)
        raise AssertionError(f"not seen within {GUARD_S:g} s; the screen:\n{self.screen()}")

    def after(self, line: str) -> str:
        """Type a line, wait for the prompt to come back, return the screen."""
        self._typed += 1  # the screen may still be that of the line before
        self.type(f"{line}; echo code $? of {self._typed}")
        return self.until(lambda text: re.search(rf"^code \d+ of {self._typed}$", text, re.MULTILINE))

    def close(self) -> None:
        subprocess.run([*self._socket, "kill-server"], check=False, capture_output=True)
