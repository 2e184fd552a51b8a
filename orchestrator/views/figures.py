"""Figures as people read them, and the marks that go with a status: never colour alone."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.sanitize import clean

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
#: Of the middle value, from the lowest bar to the highest.
FULL_SCALE = 0.1
#: The sign and the colour of statuses of steps and runs, of gate verdicts and of checks.
MARKS = {
    **dict.fromkeys(("passed", "pass", "met", "correct", "finished"), ("✓", "green")),
    **dict.fromkeys(("failed", "fail", "timed_out", "error", "lost", "over_budget", "idle"), ("✗", "red")),
    **dict.fromkeys(("not_met", "wrong", "broken", "unreachable", "interrupted"), ("✗", "red")),
    "faster": ("✓", "green"), "slower": ("✗", "red"), "same": ("", ""),
    **dict.fromkeys(("inconclusive", "incomparable"), ("", "yellow")),
    **dict.fromkeys(("running", "queued", "starting", "asking", "ended", "started"), ("●", "cyan")),
    **dict.fromkeys(("warned", "warn", "preempted", "refused", "missed", "overlap"), ("!", "yellow")),
    **dict.fromkeys(("skipped", "not_applicable"), ("-", "dim")), "cancelled": ("-", "yellow"),
    "unavailable": ("○", "yellow"), "info": ("·", "dim"), "incomplete": ("◐", "magenta"), "imported": ("·", "yellow"),
}  # fmt: skip
_KINDS = {"green": "good", "red": "bad", "magenta": "open", "cyan": "busy"}


def _known(status: str) -> tuple[str, str]:
    """By the status or its first word: ``wrong 3/4``, ``failed: why``."""
    return MARKS.get(status.replace(" ", "_")) or MARKS.get(status.partition(" ")[0].rstrip(":"), ("", ""))


def kind(status: str) -> str:
    """``good``, ``bad``, ``open``, ``busy`` or ``plain``."""
    return _KINDS.get(_known(status)[1], "plain")


def sign(status: str) -> str:
    """What stands before a status on a page, as on a terminal: ``✓``, ``✗``, ``◐``; empty for some."""
    return _known(status)[0]


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 05 s``, ``1 h 02 min``; ``?`` for what is no duration."""
    if not -1e12 < seconds < 1e12:  # a host's figure; NaN compares with nothing
        return "?"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


def age(created: str, now: float) -> str:
    """How long ago, in one unit: ``40 s``, ``12 min``, ``5 h``, ``3 d``."""
    from datetime import datetime  # not before there is something to show: a run imports this module at its start

    try:
        seconds = max(0.0, now - datetime.fromisoformat(created).timestamp())
    except (ValueError, OverflowError):
        return "?"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def minute(stamp: str | None) -> str:
    """An ISO 8601 time as ``2026-11-21 08:15``."""
    return clean((stamp or "")[:16]).replace("T", " ")


def commit_text(commit: str | None, *, dirty: bool = False) -> str:
    """``012345678 + changes``; empty if there is none."""
    return clean((commit or "")[:9]) + " + changes" * dirty


def local(epoch: float) -> str:
    """A time as this computer's clock shows it: ``Mon 23 Nov 02:00``."""
    from datetime import datetime

    return datetime.fromtimestamp(epoch).astimezone().strftime("%a %d %b %H:%M")


def usd(value: float | None) -> str:
    """``$0.0123`` below ten cents, ``$1.23`` from there on; ``-`` for what nobody knows."""
    if value is None:
        return "-"
    sign, size = ("-" if value < 0 else ""), abs(value)
    return f"{sign}${size:.2f}" if size >= 0.0995 or size == 0 else f"{sign}${size:.4f}"


def price(usd_per_hour: float) -> str:
    """``$0.7068``, as the cloud lists it."""
    return f"${usd_per_hour:.4f}"


def whole(value: float | None) -> str:
    """Without decimals; empty if unknown."""
    return "" if value is None else f"{value:.0f}"


def microseconds(value: float | None) -> str:
    """Three significant digits at least: ``0.0132``, ``25.90``, ``1397.7``, ``12345``, ``1e+12``; empty if unknown."""
    if value is None:
        return ""
    if 0 < value < 1 or value >= 1e9:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10_000 else f"{value:.0f}"


def unit_name(unit: str) -> str:
    return "µs" if unit == "us" else unit


def small(value: float | None) -> str:
    """An error: ``1.2e-04``, ``0`` exactly; empty if unknown."""
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"


def gate_value(value: object) -> str:
    """The measured value that a gate compared, as text: ``168``; for a list its distinct values. Empty if it is true,
    false or absent, which the verdict says already."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, list):
        distinct = list(dict.fromkeys(gate_value(v) or str(v) for v in value[:1000]))
        return clean(", ".join(distinct[:6]) + (", ..." if len(distinct) > 6 else ""), 80)
    return clean(f"{value:g}" if isinstance(value, float) else value, 80)


def significant(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def speed(ratio: float) -> str:
    """From a ratio of times, ours over the reference's: ``2.31x faster``, ``1.40x slower``, ``as fast``."""
    if 0.995 <= ratio <= 1.005:
        return "as fast"
    return f"{significant(1 / ratio)}x faster" if ratio < 1 else f"{significant(ratio)}x slower"


def against(ratio: float | None, name: str) -> str:
    """``2.31x faster than PyTorch``, ``as fast as PyTorch``; empty if not measured."""
    if ratio is None or ratio <= 0:
        return ""
    words = speed(ratio)
    return f"{words} {'as' if words == 'as fast' else 'than'} {name}"


def interval(ratio: float, low: float, high: float) -> str:
    """The bounds of a ratio in the terms that :func:`speed` tells it in: ``[2.25, 2.40]``."""
    low, high = (1 / high, 1 / low) if ratio < 1 else (low, high)
    return f"[{significant(low)}, {significant(high)}]"


def percent(ratio: float) -> str:
    """A ratio of times as a change: ``+5.1 %`` is slower."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"


def difference(ratio: float) -> str:
    """A ratio of times in words: ``5.1 % slower``, ``2.08x faster``, ``equal``."""
    if not 0.5 < ratio < 2:
        return speed(ratio)
    share = f"{100 * abs(ratio - 1):.1f} %"
    return "equal" if share == "0.0 %" else f"{share} {'slower' if ratio > 1 else 'faster'}"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """At most ``width`` characters, on an axis of :func:`scale`. Of more values than ``width``, medians of equal
    shares; an empty line for none."""
    from statistics import median

    bars, n = (ASCII_BARS if ascii_only else BARS), len(values)
    shown = (
        list(values) if n <= width else [median(values[i * n // width : (i + 1) * n // width]) for i in range(width)]
    )
    low, high = scale(shown)
    return "".join(bars[round((v - low) / (high - low) * (len(bars) - 1))] for v in shown)


def scale(values: Sequence[float]) -> tuple[float, float]:
    """The ends of a small line's axis: at least :data:`FULL_SCALE` of the middle apart, so that noise looks flat."""
    middle = min(values, default=0.0) / 2 + max(values, default=0.0) / 2  # a host may say 1e308 twice
    half = max(max(values, default=0.0) - middle, FULL_SCALE / 2 * abs(middle)) or 1.0
    return middle - half, middle + half


def load_bars(percents: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Percent as bars, the newest at the right."""
    bars = ASCII_BARS if ascii_only else BARS
    return "".join(bars[round(min(100.0, max(0.0, v)) / 100 * (len(bars) - 1))] for v in list(percents)[-width:])
