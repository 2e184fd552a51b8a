"""``run``: one search, led by this machine, from its spec to the last measurement of its elites; and what it writes
meanwhile: a line for each trial, and its files, each replaced as a whole."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from fcctl_remote.base import files
from fcctl_remote.base.text import one_line
from fcctl_tune.engine.engine import Engine, Stopped
from fcctl_tune.engine.final import Final
from fcctl_tune.engine.pace import Halving
from fcctl_tune.errors import MissingDependency, SpecError, TuneError, exit_code_of
from fcctl_tune.search import optimizer as search
from fcctl_tune.search.records import TrialRecord, eligible, standing, topk
from fcctl_tune.search.spec import Spec
from fcctl_tune.search.study import Study
from fcctl_tune.trial import tasks
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import hosts, membership
from fcctl_tune.workers.cluster import Cluster
from fcctl_tune.workers.hosts import print_line, this_machine
from fcctl_tune.workers.membership import is_name

#: Set to 1 while numpy is imported: its own threads would run beside builds and timings.
_NUMPY_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
STOPPED = 143


def main(argv: Optional[List[str]] = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if (options.fleet or options.host) and not (options.fleet and is_name(options.host)):
        parser.error("--fleet FILE needs --host NAME; NAME may have letters, digits and ._-")
    return exit_code_of(lambda: Run(options).carry_out(), options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fcctl_tune run", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("spec", help="the search's specification, as JSON")
    add(
        "--out",
        required=True,
        metavar="DIR",
        help="folder for tune_log.csv, topk.json and the journal, from which an interrupted search continues",
    )
    add(
        "--work",
        metavar="DIR",
        default=membership.WORK,
        help="folder for builds, kept between searches (default: %(default)s)",
    )
    add("--trials", type=int, metavar="N", help="number of trials")
    add(
        "--elites",
        type=int,
        metavar="N",
        help="number of elites: parents of new candidates, and measured again at the end",
    )
    add("--strategy", choices=("auto", *search.STRATEGIES), default="auto")
    add("--compare", choices=("random",), help="also run another strategy with the same number of trials, as a control")
    add("--seed", type=int, default=0, help="random seed of the proposals and of the trials' inputs")
    add(
        "--case",
        action="append",
        metavar="CASE",
        help="search on this case instead of the cases in the file; may be repeated",
    )
    add("--host", default="", metavar="NAME", help="the name of this machine among the search's machines")
    add("--fleet", metavar="FILE", help="let other machines join; FILE gets the address (see `member`)")
    add("--no-final", action="store_true", help="do not measure the elites again at the end")
    return parser


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Import Optuna and Dask in a thread meanwhile; where they are used, a missing one is reported."""

    def load() -> None:
        for variable in _NUMPY_THREADS:
            os.environ.setdefault(variable, "1")
        with contextlib.suppress(ImportError):
            import distributed  # noqa: F401
            import optuna  # noqa: F401

    given = {name: os.environ.get(name) for name in _NUMPY_THREADS}
    meanwhile = threading.Thread(target=load, daemon=True)
    meanwhile.start()
    try:
        yield
    finally:
        meanwhile.join()  # two threads at the same imports may meet half-made modules
        for name, value in given.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Run:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = os.path.abspath(options.out)
        self.work = os.path.abspath(options.work)
        folder = os.environ.get("FCCTL_OUT") or self.out
        self.document = os.path.join(folder, "tuning.json")
        self.cwd = os.getcwd()
        self.began = time.monotonic()
        self.about: Dict[str, Any] = {"complete": False}
        self._engine: Optional[Engine] = None
        self._stop: Optional[str] = None

    def carry_out(self) -> int:
        """Raises: TuneError."""
        self._catch_signals()
        try:
            return self._search()
        except Stopped as stopped:
            print_line("stopped: %s; to continue the search, run the same command again" % stopped)
            return STOPPED

    def _search(self) -> int:
        spec = self._spec()
        self._make_folders()
        own = self.out, os.environ.get("FCCTL_OUT", "")
        source = tasks.source_identity(self.cwd, (*own, self.work), os.path.join(self.work, "source.json"))
        trial_spec = TrialSpec.of(spec, self.cwd, self.work, source, own, self.options.seed)
        journal = os.path.join(self.out, "journal.log")
        with contextlib.ExitStack() as ending:
            offer = os.path.abspath(self.options.fleet) if self.options.fleet else ""
            here = this_machine(self.options.host)
            cluster = ending.enter_context(Cluster(here, print_line, trial_spec, offer))
            with _loading():
                spec = self._with_space(spec, trial_spec)
                tasks.build_default_soon(trial_spec, spec.known_space)
                self._describe(cluster)
            study = ending.enter_context(Study(journal, spec, self.options.strategy, self.options.seed))
            cluster.ready()  # meanwhile its workers imported
            try:
                code = self._run(study, cluster, trial_spec)
            except TuneError as error:
                cluster.goodbye("the search failed: %s" % error.message)
                raise
            cluster.goodbye("the search has ended")
            return code

    def _with_space(self, spec: Spec, trial_spec: TrialSpec) -> Spec:
        """Run the space command."""
        if spec.space is None:
            spec = spec.with_space(tasks.listing(trial_spec, spec.space_command))
        files.write_atomic(os.path.join(self.out, "spec.json"), files.to_json(dict(spec.entry)), durable=False)
        return spec

    def _run(self, study: Study, cluster: Cluster, trial_spec: TrialSpec) -> int:
        progress = ProgressFiles(study, self.out, self.document, self.about)
        engine = self._made(study, cluster, trial_spec, progress.add)
        progress.account = functools.partial(self._account, engine)
        try:
            self._announce(study, cluster)
            engine.run()
            progress.write()
            if not any(r.state == "complete" for r in study.records()):
                raise TuneError(
                    "none of the %d trials succeeded" % len(study.records()),
                    "see the reasons in %s" % os.path.join(self.out, "tune_log.csv"),
                )
            if not self.options.no_final:
                self._final(engine)
            if self.options.compare:
                self._control(engine)
            self.about["complete"] = study.ended != "running"
        except BaseException as error:
            if isinstance(error, TuneError):
                self.about["fault"] = error.message
            with contextlib.suppress(OSError):  # of two faults the first says more
                progress.write()
            raise
        progress.write()
        return 0

    def _spec(self) -> Spec:
        options = self.options
        try:
            with open(options.spec, encoding="utf-8") as stream:
                spec = Spec.from_dict(json.load(stream))
        except (OSError, ValueError) as error:
            raise SpecError("spec", "%s cannot be read: %s" % (options.spec, error)) from None
        return spec.narrowed(options.trials, options.elites, options.case or ())

    def _make_folders(self) -> None:
        try:
            os.makedirs(self.out, exist_ok=True)
        except OSError as error:
            problem = "%s: %s" % (error.filename, error.strerror)
            raise MissingDependency(problem, "choose another folder: --out") from None
        self._lock = membership.claim(self.work)

    def _made(
        self, study: Study, cluster: Cluster, trial_spec: TrialSpec, on_record: Callable[[TrialRecord], None]
    ) -> Engine:
        model = cluster.hosts[0].model
        before = {r.gpu for r in study.records() if r.gpu} - {model}
        if before:
            raise TuneError(
                "this search started on %s, but this machine has %s: their times cannot be compared"
                % (", ".join(sorted(before)), model),
                "continue on the first GPU, or start a new search with another --out",
            )
        engine = self._engine = Engine(study, cluster, trial_spec, Halving(), on_record=on_record, gpu=model)
        if self._stop is not None:
            engine.stop(self._stop)
        return engine

    def _announce(self, study: Study, cluster: Cluster) -> None:
        size, known = study.space.size, len(study.records())
        print_line(
            f"{study.spec.tune}: {study.strategy} search over {'very many' if size is None else size} configurations, "
            f"{study.spec.trials} trials{f' ({known} already done)' if known else ''}; {cluster.hosts[0].outline()}"
        )

    def _final(self, engine: Engine) -> None:
        spec, candidates = engine.study.spec, eligible(engine.study.records())
        if not candidates:
            print_line("no elites to measure again: only the default configuration works")
            return
        print_line("measuring the elites (%d) again, interleaved with the default" % min(spec.elites, len(candidates)))
        final = Final(
            engine.cluster, engine.trial_spec, spec, engine.default, candidates,
            stopped=lambda: self._stop is not None,
        )  # fmt: skip
        began = time.monotonic()
        entries = final.run()
        if self._stop is not None:
            raise Stopped(self._stop)
        self.about["final"] = entries
        self.about["final_run"] = {**final.document(entries), "wall_s": round(time.monotonic() - began, 3)}
        for line in outcome(entries, spec.metric.unit):
            print_line(line)

    def _control(self, engine: Engine) -> None:
        """Spend the same budget on another strategy; existing builds are reused."""
        print_line("control: %s search with the same number of trials" % self.options.compare)
        path = os.path.join(self.out, "journal-%s.log" % self.options.compare)
        refuted = engine.study.summary().refuted(self.about.get("final", ()))
        with Study(path, engine.study.spec, self.options.compare, self.options.seed) as study:
            progress = ProgressFiles(study, self.work, os.path.join(self.work, "control.json"), {})
            control = self._made(study, engine.cluster, engine.trial_spec, progress.add)
            try:
                control.run()
            finally:
                summary = study.summary().knowing(refuted)
                log = os.path.join(self.out, "tune_log-%s.csv" % self.options.compare)
                files.write_atomic(log, summary.log_csv().encode("utf-8"), durable=False)
            self.about["controls"] = [summary.control()]

    def _describe(self, cluster: Cluster) -> None:
        host = cluster.hosts[0]
        first = host.devices[0]
        sms = host.sms if host.sms is not None else hosts.multiprocessors(first)
        self.about["gpu"] = {"name": first.model, "sms": sms} if first.is_gpu else None

    def _account(self, engine: Engine) -> None:
        effort = engine.effort.as_dict()
        share = effort["gpu_timed_share"]
        self.about["wall_s"] = round(time.monotonic() - self.began, 3)
        self.about["gpu_busy_pct"] = None if share is None else round(100 * share, 1)
        self.about["effort"] = {**effort, "worker_deaths": engine.cluster.deaths}
        hosts = {**{host.name: host for host in engine.cluster.hosts}, **engine.seen}
        self.about["machine"] = {
            "gpus": sum(len(host.devices) for host in hosts.values()),
            "builders": sum(host.cpus for host in hosts.values()),
            "python": sys.version.split()[0],
        }
        if any(hosts):
            self.about["machine"]["hosts"] = [
                {"name": host.name, "gpus": len(host.devices), "builders": host.cpus} for host in hosts.values()
            ]

    def _catch_signals(self) -> None:
        """SIGTERM comes when the time of a step or machine ends, SIGINT from a terminal; SIGHUP of tmux is ignored."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, lambda *_: None)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop = signal.Signals(number).name
        if self._engine is not None:
            self._engine.stop(self._stop)
        else:
            raise Stopped(self._stop)


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
        best = "best %.4f (trial %d)" % (self._best.value or 0.0, self._best.number) if self._best else "no result yet"
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
