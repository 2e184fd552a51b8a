"""A search that survives its process: trials are asked for and told, each on disk before it counts.

Optuna keeps it in a journal, which its own tools can read; ``search.optimizer`` proposes. The next process that opens
the file continues: pending trials are asked for again under their numbers, recorded ones are not repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from typing import TYPE_CHECKING, Deque, Dict, Iterator, List, Optional, Set, Tuple

from fcctl_remote.base.text import one_line
from fcctl_tune.errors import StudyMismatch, TuneError
from fcctl_tune.search import optimizer as search
from fcctl_tune.search.records import Summary, Trial, TrialRecord
from fcctl_tune.search.space import Space
from fcctl_tune.search.spec import Spec

if TYPE_CHECKING:
    import optuna

    from fcctl_tune.search.storage import Journal

NAME = "fcctl"
#: The parts of a spec that its times depend on; others may change before a search is resumed.
_IDENTITY = ("parameters", "constraints", "configurations", "default", "build", "gates", "check", "bench", "serve",
             "metric", "cases")  # fmt: skip


class Study:
    """One search in one file, for one process and one thread.

    Args:
        path: the journal; created if it does not exist.
        strategy: auto, evolution, random or exhaustive; auto is exhaustive where the budget covers the space.
        seed: determines the proposals, with the trial's number and the other records.

    Raises StudyLocked: another process has it open; StudyMismatch: it is the study of another search; SpecError: the
    spec's space command was not run; TuneError: Optuna is missing, or the file is damaged."""

    def __init__(self, path: str, spec: Spec, strategy: str = "auto", seed: int = 0) -> None:
        self.spec, self.seed = spec, seed
        self.space: Space = spec.known_space
        self.strategy = search.choose(strategy, self.space, spec.trials)
        self.ended = "running"
        self._known: Dict[int, TrialRecord] = {}
        self._asked: Dict[int, Trial] = {}
        self._live: Dict[int, optuna.trial.Trial] = {}
        self._again: Deque[Trial] = deque()
        self._tried: Set[str] = set()
        self._journal, self._study = _open(path)
        try:
            self._distributions = _distributions(self.space)
            with _readable(path):
                self._identify(path)
                self._restore()
        except BaseException:
            self.close()
            raise

    def _identify(self, path: str) -> None:
        text = json.dumps([self.spec.entry.get(key) for key in _IDENTITY], sort_keys=True)
        mine = {"spec": hashlib.sha256(text.encode()).hexdigest(), "strategy": self.strategy, "seed": self.seed}
        stored = self._study.user_attrs.get(NAME)
        if stored is None:
            self._study.set_user_attr(NAME, mine)
            self._journal.sync()
        elif stored != mine:
            differs = ", ".join(key for key in mine if stored.get(key) != mine[key])
            hint = "choose another folder for the search, or move this file away"
            raise StudyMismatch(f"{path} belongs to another search: {differs} differs", hint)

    def _restore(self) -> None:
        """Read the records of an earlier process; complete a record that it had begun."""
        import optuna

        for frozen in self._study.get_trials(deepcopy=False):
            entry = frozen.user_attrs.get("record")
            key = self.space.key(frozen.system_attrs["fixed_params"])
            self._tried.add(key)
            if entry is not None:
                record = TrialRecord.from_dict(entry)
                if (record.number, self.space.key(record.params)) != (frozen.number, key):
                    raise ValueError(f"trial {frozen.number} has the record of another trial")
                self._known[frozen.number] = record
            if frozen.state.is_finished():
                continue
            if frozen.state != optuna.trial.TrialState.RUNNING:
                raise ValueError(f"trial {frozen.number} was added by another program")
            if entry is not None:
                self._finish(self._known[frozen.number])
                continue
            trial = Trial(frozen.number, frozen.system_attrs["fixed_params"], frozen.user_attrs.get("source", ""))
            self._asked[trial.number] = trial
            self._live[trial.number] = self._running(frozen)
            self._again.append(trial)
        self._journal.sync()

    def ask(self) -> Optional[Trial]:
        """The next configuration; None when the budget is used up or the space is exhausted (:attr:`ended` says)."""
        if self._again:
            return self._again.popleft()
        number = len(self._asked) + len(self._known)
        if number >= self.spec.trials:
            self.ended = "budget"
            return None
        trial = self._proposed(number)
        if trial is None:
            self.ended = "exhausted"
            return None
        live = self._begun(trial)  # after a power cut it may be asked for again
        self._asked[trial.number], self._live[trial.number] = trial, live
        self._tried.add(self.space.key(trial.params))
        return trial

    def _begun(self, trial: Trial) -> optuna.trial.Trial:
        """Optuna's ``enqueue_trial`` and ``ask`` in one line of the journal, instead of one for each parameter."""
        import optuna

        params, source = dict(trial.params), {"source": trial.source}
        running = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING, params=params, distributions=self._distributions, user_attrs=source,
            system_attrs={"fixed_params": params},
        )  # fmt: skip
        self._study.add_trial(running)
        return self._running(self._study.get_trials(deepcopy=False)[-1])

    def _running(self, frozen: optuna.trial.FrozenTrial) -> optuna.trial.Trial:
        import optuna

        return optuna.trial.Trial(self._study, frozen._trial_id)  # noqa: SLF001 - Optuna has no other way

    def _proposed(self, number: int) -> Optional[Trial]:
        if number == 0:
            return Trial(0, self.space.default, "default")
        records = tuple(self._known[n] for n in sorted(self._known))
        pending = tuple(self._asked[n].params for n in sorted(self._asked))
        history = search.History(self.space, records, pending, self._tried, self.spec.trials)
        return search.propose(self.strategy, history, search.rng_of(self.seed, number), self.spec.elites)

    def tell(self, record: TrialRecord) -> None:
        """Record a trial; it is on disk when this returns. Raises: TuneError, if it is not pending."""
        asked = self._asked.get(record.number)
        if asked is None or self.space.key(asked.params) != self.space.key(record.params):
            why = "already has a result" if record.number in self._known else "was not requested"
            raise TuneError(f"trial {record.number} {why}")
        self._live[record.number].set_user_attr("record", record.to_dict())
        self._finish(record)
        self._journal.sync()
        del self._asked[record.number], self._live[record.number]
        self._known[record.number] = record

    def _finish(self, record: TrialRecord) -> None:
        """Tell Optuna the value, or that the trial was pruned or failed."""
        import optuna

        if record.state == "complete":
            self._study.tell(record.number, record.value)
        else:
            states = optuna.trial.TrialState
            self._study.tell(record.number, state=states.PRUNED if record.state == "pruned" else states.FAIL)

    def records(self) -> List[TrialRecord]:
        """Every record so far, by number."""
        return [self._known[n] for n in sorted(self._known)]

    @property
    def learns(self) -> bool:
        """Whether records change the proposals."""
        return self.strategy == "evolution"

    def summary(self) -> Summary:
        """The search so far, for its documents."""
        return Summary(self.spec, self.strategy, self.seed, self.ended, tuple(self.records()))

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: str) -> Tuple[Journal, optuna.Study]:
    try:
        import optuna

        from fcctl_tune.search.storage import Journal
    except ImportError as error:
        raise TuneError(f"the search needs Optuna: {error}", "pip install 'fcctl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = Journal(path)
    sampler = optuna.samplers.RandomSampler(0)  # never asked: every trial's parameters are given
    try:
        with _readable(path):
            storage = optuna.storages.JournalStorage(journal)
            if any(one.study_name == NAME for one in storage.get_all_studies()):
                study = optuna.load_study(storage=storage, study_name=NAME, sampler=sampler)
            else:
                study = optuna.create_study(storage=storage, study_name=NAME, direction="minimize", sampler=sampler)
            journal.sync()
    except BaseException:
        journal.close()
        raise
    return journal, study


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """For a journal of any content, since it may come from another machine. Raises: TuneError, if it is no study."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as error:
        problem = one_line(f"{type(error).__name__}: {error}")
        raise TuneError(
            f"{path} is not a search's journal: {problem}",
            "to start the search from the beginning, move this file away",
        ) from None


def _distributions(space: Space) -> Dict[str, optuna.distributions.BaseDistribution]:
    import optuna

    return {p.name: optuna.distributions.CategoricalDistribution(p.values) for p in space.parameters}
