"""The output of a run while it is active: one live line block on a terminal, plain lines elsewhere.

Both are ``Observer``. Everything goes to stderr; text that came from the host is cleaned of
control characters first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.base.observer import Observer
from orchestrator.base.sanitize import clean, number
from orchestrator.views.figures import MARKS, duration, gate_value

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fcctl_remote import wire

_log = logging.getLogger(__name__)


def step_line(event: wire.Event) -> tuple[str, str, str]:
    """Mark, colour and text of a finished step."""
    data = event.data
    status = str(data.get("status"))
    mark, colour = MARKS.get(status, ("?", "red"))
    spent = duration(number(data.get("duration_s")) or 0.0)
    text = f"{clean(str(data.get('step')), 40)}  {clean(status.replace('_', ' '), 20)}  {spent}"
    if data.get("message") and status != "warned":
        text += "  " + first_line(str(data["message"]))
    return mark, colour, text


def first_line(text: str) -> str:
    """The first line of host text, cleaned, of a length that fits a terminal."""
    return clean(text.strip().splitlines()[0] if text.strip() else "", 200)


def event_line(event: wire.Event) -> tuple[str, str] | None:
    """A line that is kept, and its colour: of a step that ended, a warning, a gate that did not pass."""
    if event.type == "step_finished":
        mark, colour, text = step_line(event)
        return f"{mark} {text}", colour
    if event.type == "warning":
        return f"warning: {first_line(str(event.data.get('message')))}", "yellow"
    if event.type == "gate" and event.data.get("verdict") in ("fail", "unavailable"):
        return f"  {_gate_text(event.data)}", "red"
    return None


def _gate_text(data: dict[str, Any]) -> str:
    value = gate_value(data.get("value"))
    text = f"gate {data['verdict']}: {clean(str(data.get('expr')), 160)}{f' (value: {value})' if value else ''}"
    return text + (f"\n    hint: {clean(str(data['hint']), 300)}" if data.get("hint") else "")


class WarningsObserver(Observer):
    """Shows nothing but what was lost or left out."""

    def __init__(self, err: TextIO) -> None:
        self._err = err

    def note(self, message: str) -> None:
        self._err.write(f"note: {clean(message, 500)}\n")
        self._err.flush()


class PlainObserver(WarningsObserver):
    """One line per thing that happened; with ``verbose``, the steps' logs too."""

    def __init__(self, err: TextIO, *, verbose: bool = False) -> None:
        super().__init__(err)
        self._verbose = verbose
        self._last_phase = ""
        self._upload_at = 0.0
        self._log_at: tuple[str | None, int] = (None, 0)

    def phase(self, name: str, detail: str = "") -> None:
        text = f"{name}: {clean(detail, 200)}" if detail else name
        if text != self._last_phase:
            self._last_phase = text
            self._line(text)

    def upload(self, sent: int, total: int, seconds: float) -> None:
        if seconds >= self._upload_at:
            self._upload_at = 2 * seconds  # a line at 1, 2, 4, 8 s: this output is kept
            self._line(f"sync: {upload_text(sent, total, seconds)}")

    def event(self, event: wire.Event) -> None:
        if event.type == "step_started":
            self._line(f"step {clean(str(event.data.get('step')), 40)}")
        elif event.type == "queued":
            self._line(queued_text(event.data.get("behind")))
        elif line := event_line(event):
            self._line(line[0])

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None:
        if not self._verbose or not log_tail:
            return
        step, seen = self._log_at
        fresh = log_tail if step != reply.log_step or reply.log_offset >= seen else log_tail[seen - reply.log_offset :]
        self._log_at = (reply.log_step, reply.log_offset + len(log_tail))
        for line in fresh.decode(errors="replace").splitlines():
            self._line("  | " + clean(line, 1000))

    def _line(self, text: str) -> None:
        self._err.write(text + "\n")
        self._err.flush()


def queued_text(behind: object) -> str:
    """What a run that waits for the machine says."""
    holder = f" behind {clean(str(behind), 63)}" if behind else ""
    return f"queued{holder}: the machine runs one exclusive job at a time"


class Live(Observer):
    """The current step, elapsed against its timeout, the last log line and the GPU, on a terminal."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.time) -> None:
        from rich.live import Live as RichLive
        from rich.spinner import Spinner

        self._console = console
        self._clock = clock
        self._phase = ""
        self._summary: wire.RunSummary | None = None
        self._skew = 0.0
        self._last_line = ""
        self._telemetry: dict[str, Any] | None = None
        self._spinner = Spinner("dots" if "utf" in console.encoding.lower() else "line")
        self._live = RichLive(
            get_renderable=self._render, console=console, refresh_per_second=8, transient=True, redirect_stdout=False
        )
        self._live.start()

    def phase(self, name: str, detail: str = "") -> None:
        self._phase = f"{name}  {clean(detail, 200)}"

    def upload(self, sent: int, total: int, seconds: float) -> None:
        self._phase = f"sync  {upload_text(sent, total, seconds)}"

    def note(self, message: str) -> None:
        self._say(f"note: {clean(message, 500)}", "")

    def _say(self, text: str, style: str) -> None:
        """A line that stays, above the block that moves."""
        self._console.print(text, style=style, markup=False, highlight=False)

    def event(self, event: wire.Event) -> None:
        if line := event_line(event):
            self._say(*line)
        if event.type == "step_finished":
            self._last_line = ""

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None:
        self._summary = reply.summary
        if reply.summary.heartbeat is not None:
            # The step's start is on the host's clock; so is the heartbeat, which is a second or two old at most.
            self._skew = min(self._clock() - reply.summary.heartbeat, self._skew or 1e18)
        lines = [line for line in log_tail.decode(errors="replace").splitlines() if line.strip()]
        if lines:
            self._last_line = clean(lines[-1], 300)
        self._telemetry = reply.telemetry or self._telemetry

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        self._spinner.update(text=Text(self._headline(), style="bold", no_wrap=True, overflow="ellipsis"))
        rows: list[RenderableType] = [self._spinner]
        if self._last_line:
            rows.append(Text("  " + self._last_line, style="dim", no_wrap=True, overflow="ellipsis"))
        gauge = telemetry_text(self._telemetry)
        if gauge:
            rows.append(Text("  " + gauge, style="cyan", no_wrap=True, overflow="ellipsis"))
        return Group(*rows)

    def _headline(self) -> str:
        s = self._summary
        if s is None or s.step is None:
            return queued_text(s.behind) if s is not None and s.behind else self._phase
        text = f"[{s.step_index + 1}/{s.step_count}] {clean(s.step, 40)}"
        if s.step_started is not None:
            elapsed = max(0.0, self._clock() - self._skew - s.step_started)
            text += f"  {duration(elapsed)}"
            if s.step_timeout_s:
                text += f" of at most {duration(s.step_timeout_s)}"
        return text


def upload_text(sent: int, total: int, seconds: float) -> str:
    """``12.0 of 40.0 MB sent, 3.0 MB/s, 9.3 s left``; without the end once more than expected was sent."""
    rate = sent / seconds if seconds > 0 else 0.0
    left = f", {duration((total - sent) / rate)} left" if rate and sent < total else ""
    return f"{sent / 1e6:.1f} of {max(sent, total) / 1e6:.1f} MB sent, {rate / 1e6:.1f} MB/s{left}"


def telemetry_text(sample: dict[str, Any] | None) -> str:
    """One line for a telemetry sample: the GPUs, or the CPU of a machine that has none."""
    if not isinstance(sample, dict):
        return ""
    if gpus := gpu_text(sample):
        return gpus
    cpu, memory = number(sample.get("cpu_pct")), number(sample.get("mem_used_mb"))
    parts = [f"CPU {cpu:.0f} %"] if cpu is not None else []
    parts += [f"memory {memory / 1024:.1f} GiB"] if memory is not None else []
    return "  ".join(parts)


def gpu_text(sample: dict[str, Any] | None) -> str:
    """The GPUs of a telemetry sample; empty if it says nothing of one."""
    gpus = sample.get("gpus") if isinstance(sample, dict) else None
    return "   ".join(_gpu_text(g) for g in gpus[:8] if isinstance(g, dict)) if isinstance(gpus, list) else ""


def _gpu_text(gpu: dict[str, Any]) -> str:
    fields = (("util_pct", "GPU {:.0f} %"), ("sm_mhz", "{:.0f} MHz"), ("power_w", "{:.0f} W"), ("temp_c", "{:.0f} °C"))
    known = ((form, number(gpu.get(key))) for key, form in fields)
    parts = [form.format(value) for form, value in known if value is not None]
    reasons = gpu.get("throttle")
    slowed = [str(r) for r in reasons[:8] if r != "gpu_idle"] if isinstance(reasons, list) else []
    if slowed:  # low clocks of an idle GPU are no fault
        parts.append(f"throttled: {clean(', '.join(slowed), 60)}")
    return "  ".join(parts)
