"""What a search writes while it runs: a line for each trial, and its files, each replaced as a whole."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional

from fcctl_remote.base import files
from fcctl_remote.base.text import one_line
from fcctl_tune.search.records import TrialRecord, standing, topk
from fcctl_tune.search.study import Study
from fcctl_tune.workers.pool import print_line

#: Seconds between two writes; at least REST times as long as the last write took, at most MOST_S.
EVERY_S, REST, MOST_S = 2.0, 50, 60.0
#: Characters of a line's parameters and reason.
SHOWN = 100


class ProgressFiles:
    """The files of ``study`` in the folder ``out``; the ``tuning`` document goes to the path ``document``."""

    def __init__(self, study: Study, out: str, document: str, about: Dict[str, Any]) -> None:
        """``about`` is added to each document; the caller updates it, also by :attr:`account`."""
        self.account: Callable[[], None] = lambda: None
        self.study, self.out, self.document, self.about = study, out, document, about
        self._best: Optional[TrialRecord] = None
        self._due = 0.0
        for record in study.records():
            self._better(record)

    def add(self, record: TrialRecord) -> None:
        """A trial ended."""
        self._better(record)
        print_line(self.line(record))
        if time.monotonic() >= self._due:
            self.write()

    def _better(self, record: TrialRecord) -> bool:
        better = record.is_timed and (self._best is None or standing(record) < standing(self._best))
        if better:
            self._best = record
        return better

    def line(self, record: TrialRecord) -> str:
        """``trial  12 of 128  complete  0.8734  best 0.8511 (trial 7)  BLOCK=128 UNROLL=2``."""
        value = "%8.4f" % record.value if record.value is not None else "%8s" % "-"
        best = "best %.4f (trial %d)" % (self._best.value or 0.0, self._best.number) if self._best else "no best yet"
        shown = self.study.space.key(record.params)
        if record.reason:
            shown = "%s   %s" % (one_line(record.reason, SHOWN), shown)
        number = "trial %3d of %d" % (record.number, self.study.spec.trials)
        return "%s  %-12s %s  %s  %s" % (number, record.state, value, best, shown[: 2 * SHOWN])

    def write(self) -> None:
        """Raises: OSError."""
        began = time.monotonic()
        self.account()
        summary = self.study.summary()
        summary = summary.knowing(summary.refuted(self.about.get("final", ())))
        document = summary.document(**self.about)
        contents = {"tune_log.csv": summary.log_csv().encode("utf-8"), "topk.json": files.to_json(topk(document))}
        for name, content in {**contents, self.document: files.to_json(document)}.items():
            files.write_atomic(os.path.join(self.out, name), content, durable=False)
        now = time.monotonic()
        self._due = now + max(EVERY_S, min(MOST_S, REST * (now - began)))


def outcome(entries: List[Dict[str, Any]], unit: str) -> List[str]:
    """A line for each elite that was measured again, the best first."""
    lines = []
    for rank, e in enumerate(entries, 1):
        if e["verdict"] == "failed":
            lines.append("elite %d: trial %d FAILED its second check: %s" % (rank, e["trial"], one_line(e["reason"])))
            continue
        held = e["held_out"]
        figures = ", ".join("%s %.4g %s" % (case, measured[unit], unit) for case, measured in e["per_case"].items())
        shown = "%.4f [%.4f, %.4f] of the default's time" % (e["ratio"], e["ci_low"], e["ci_high"])
        if held is not None:
            shown += "; held out %.4f [%.4f, %.4f]" % (held["ratio"], held["ci_low"], held["ci_high"])
        lines.append("elite %d: trial %d %s: %s   (%s)" % (rank, e["trial"], e["verdict"], shown, figures))
    return lines
