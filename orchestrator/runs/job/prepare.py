"""Everything a run needs before its first side effect: job, target, source, plan, and the values of its secrets."""

from __future__ import annotations

import hashlib
import math
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base import run_id as ids
from orchestrator.base.errors import BudgetError, ConfigError
from orchestrator.machines.targets import SecretSource, Target
from orchestrator.money.caps import Budget, Cap, books_caps, dollars, run_caps
from orchestrator.money.prices.rates import hourly_plan
from orchestrator.results.records import SourceRecord
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.plan import check_variants, controller_steps, make_plan, slice_steps
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source

if TYPE_CHECKING:
    from orchestrator.runs.job.files import StepSearch

#: Shorter values cannot be masked: they are part of other words.
LEAST_CHARS = 4
COMMAND_LIMIT_S = 60.0

_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)
_VALUE = re.compile(r"^(hf_|ghp_|github_pat_|glpat-|sk-|AKIA|xox[abp]-|-----BEGIN [A-Z ]*PRIVATE KEY)")


class Secrets:
    """Reads values, each once per command. They are kept in this process only."""

    def __init__(self, sources: Mapping[str, SecretSource]) -> None:
        self._sources = sources
        self._values: dict[str, str] = {}

    def __call__(self, names: Sequence[str]) -> dict[str, str]:
        """Raises ConfigError: one is not there."""
        for name in names:
            if name not in self._values:
                self._values[name] = self._read(name)
        return {name: self._values[name] for name in names}

    def _read(self, name: str) -> str:
        source = self._sources.get(name)
        if source is None:
            value = os.environ.get(name, "")
            fix = f"export {name}=... in this shell, or add [secrets.{name}] with command or keyring to fcctl.toml"
        elif source.command is not None:
            value, fix = _printed(name, source.command), f"to see its output: {source.command}"
        else:
            value = _from_keyring(name, source.keyring or "")
            service, _, user = (source.keyring or "").partition("/")
            fix = f"keyring set {service} {user or name}"
        if len(value) < LEAST_CHARS:
            what = "is not set" if not value else f"has fewer than {LEAST_CHARS} characters"
            raise ConfigError(f"the secret {name} {what}", hint=fix)
        return value


def _printed(name: str, command: str) -> str:
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        cause = f"it took longer than {COMMAND_LIMIT_S:.0f} s"
        raise ConfigError(f"the command of the secret {name} did not end", cause=cause, hint=_try(command)) from None
    except UnicodeDecodeError:
        message = f"the command of the secret {name} printed no UTF-8 text"
        raise ConfigError(message, hint=_try(command)) from None
    if done.returncode:
        raise ConfigError(
            f"the command of the secret {name} failed with exit code {done.returncode}", hint=_try(command)
        )
    return done.stdout.rstrip("\n")


def _try(command: str) -> str:
    return f"to try it: {command}"


def _from_keyring(name: str, place: str) -> str:
    try:
        import keyring
    except ImportError:
        from orchestrator.base.installation import to_install

        raise ConfigError(
            f"the secret {name} is in the system's keyring, but the Python package keyring is not installed",
            hint=to_install("keyring"),
        ) from None
    service, _, user = place.partition("/")
    try:
        return keyring.get_password(service, user or name) or ""
    except keyring.errors.KeyringError as error:
        hint = "unlock the keyring, or use `command` in its [secrets] table"
        raise ConfigError(
            f"cannot read the secret {name} from the system's keyring", cause=str(error), hint=hint
        ) from None


def looking_secret(environments: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The names of values that look like secrets, each once."""
    names = {
        name
        for env in environments
        for name, value in env.items()
        if _VALUE.match(value) or (_NAME.search(name) and len(value) >= 8 and not value.startswith(("$", "/", "~")))
    }
    yield from sorted(names)


@dataclass(frozen=True)
class RunRequest:
    """What the command line asks for."""

    job: Job
    target: Target
    settings: Mapping[str, str]
    steps: str | None = None
    #: What this run may cost, dollars, beside what the configuration and the job say.
    budget_usd: float | None = None
    #: Start it even if its worst case costs more than it may: it is ended at its tightest cap.
    stop_at_budget: bool = False
    #: The searches that its steps run, by name.
    searches: Mapping[str, StepSearch] = field(default_factory=dict)
    #: What the host is sent for searches whose files need not be read again.
    tunings: Mapping[str, wire.Tuning] = field(default_factory=dict)
    #: The target's builder.
    builder: Target | None = None


@dataclass(frozen=True)
class Prepared:
    saved: SavedPlan
    source: Source
    #: Whether the run itself has a cap.
    capped: bool = False


def prepare(
    services: Services, root: Path, project: str, budget: Budget, wanted: RunRequest, source: Source | None = None
) -> Prepared:
    """Reads the source, unless it is given, and makes the plan of one run; no side effects. Raises UsageError for an
    unknown setting, step or variant, BudgetError if the run could break a cap."""
    if wanted.searches:
        steps = slice_steps(wanted.job.steps, wanted.steps)
        check_variants(wanted.job, steps, wanted.settings, wanted.searches)
    if source is None:
        services.observer.phase("source", "reading")
        source = services.source.read(root)
    now = services.clock.now()
    plan = make_plan(
        wanted.job,
        wanted.target,
        source,
        wanted.settings,
        wanted.steps,
        ids.new(wanted.job.job, wanted.target.name, now),
        now,
        workspace=tree_name(project, root),
        searches=_searches(services, wanted),
        idle=budget.idle,
    )
    services.secrets(plan.secrets)  # before anything costs something
    for name in looking_secret([plan.env, *(step.env for step in plan.steps)]):
        services.observer.note(
            f"{name} in `env` looks like a secret, and fcctl stores env values in plan.json on both computers; "
            f'use secrets = ["{name}"] instead: fcctl help configuration'
        )
    record = SourceRecord(tree_sha256=source.tree_sha256, git_commit=source.git_commit, dirty=source.dirty)
    saved = SavedPlan(
        plan=plan,
        target=wanted.target,
        source=record,
        before_wake=controller_steps(wanted.job, wanted.settings, wanted.steps),
        settings=dict(wanted.settings),
        report=wanted.job.report,
        **hourly_plan(wanted.target, budget).model_dump(),
        egress_usd=_egress_usd(services, wanted),
    )
    if wanted.builder is not None and saved.before_wake:
        from orchestrator.runs import builder

        if builder.is_needed(saved.before_wake, services.cuda_image):
            saved = saved.model_copy(update={"builder": builder.plan(saved, wanted.builder, budget, now)})
    return _held_to_caps(services, saved, source, budget, wanted)


def _egress_usd(services: Services, wanted: RunRequest) -> float:
    if wanted.target.cloud is None:
        return 0.0
    from orchestrator.runs.cost.estimate import known_egress_usd

    return known_egress_usd(services.store, wanted.job.job)


def _searches(services: Services, wanted: RunRequest) -> dict[str, wire.Tuning]:
    """What the host is sent for each search. Raises ConfigError if its libraries are not installed here."""
    if not wanted.searches:
        return dict(wanted.tunings)
    services.observer.phase("search", "its libraries")
    bundle = services.bundles().tune()
    return {
        name: wire.Tuning(search.to_json(_environment(wanted, name)), bundle.sha256)
        for name, search in wanted.searches.items()
    }


def _environment(wanted: RunRequest, search: str) -> dict[str, str]:
    """What the first step that runs the search has in its environment, as far as the job says it."""
    own = next((dict(step.env) for step in wanted.job.steps if step.tune == search), {})
    return {**wanted.job.env, **own, **wanted.settings}


def _held_to_caps(services: Services, saved: SavedPlan, source: Source, budget: Budget, wanted: RunRequest) -> Prepared:
    """Raises BudgetError for a run that could break a cap, or sets the budget to stop at."""
    over_runs = saved.target.kind != "sandbox" and budget.holds_over_runs
    given = (budget.per_run_usd, wanted.job.budget.usd, wanted.budget_usd)
    of_session: list[Cap] = []
    if saved.fence_s is not None and (services.sessions.open() or services.sessions.abroad()):
        from orchestrator.runs.machine.pending_releases import session_on, within

        found = session_on(services, saved.target)
        if found is not None:
            saved, cap = within(services, saved, found)
            of_session, over_runs = [cap], False  # what it may cost was reserved when the session began
            if found.abroad is not None:
                services.observer.note(
                    f"{saved.target.name} has a session of the workspace {found.abroad.place};"
                    f" the run uses this session"
                )
    if not over_runs and not of_session and all(usd is None for usd in given):
        return Prepared(saved, source)
    own_caps = run_caps(wanted.job.job, budget, wanted.job.budget.usd, wanted.budget_usd)
    caps = of_session + own_caps
    capped = bool(caps)
    if saved.builder is not None:  # it is none of a session's machines
        watched = saved.builder.model_copy(update={"caps": own_caps + books_caps(budget)})
        saved = saved.model_copy(update={"builder": watched})
    if wanted.stop_at_budget:
        saved = _ended_in_time(services, saved, caps, budget if over_runs else None)
    _check_cap(saved, caps)
    if over_runs or saved.builder is not None:
        from orchestrator.runs.cost.spending import check_caps

        check_caps(services, budget, saved.builder_usd + (saved.worst_case_usd if over_runs else 0.0))
    caps += books_caps(budget) if over_runs else []
    return Prepared(saved.model_copy(update={"caps": caps}), source, capped)


def _ended_in_time(services: Services, saved: SavedPlan, caps: list[Cap], books: Budget | None) -> SavedPlan:
    """The run with a budget to stop at if it might break a cap. Raises BudgetError if the rest buys too little."""
    from orchestrator.money.caps import LEAST_S
    from orchestrator.runs.cost.budget_guard import refuse_useless
    from orchestrator.runs.cost.spending import remaining_budget

    left = [cap.usd for cap in caps] + ([usd for _, usd in remaining_budget(services, books)] if books else [])
    if not left or saved.worst_rate <= 0 or _worst_usd(saved) + saved.builder_usd <= min(left):
        return saved
    saved = saved.model_copy(update={"stop_at_usd": max(0.0, min(left) - saved.builder_usd)})
    refuse_useless(saved, LEAST_S if saved.fence_s is not None else 1.0)
    return saved


def _worst_usd(saved: SavedPlan) -> float:
    """Its worst case without an end at the budget; infinite if its target's limit is shorter."""
    try:
        return saved.worst_case_usd
    except ConfigError:
        return math.inf


def check_resumed(saved: SavedPlan, budget: Budget) -> None:
    """Raises BudgetError if ``saved``, which starts its machine once more, could break a cap of its job or options,
    or the present one of a run: its price and its first step's timeout may be higher by now."""
    asked = (f"budget: usd of the job {saved.plan.job}", "--budget")
    caps = [cap for cap in saved.caps if cap.name in asked] + run_caps(saved.plan.job, budget, None)
    alone = saved.model_copy(update={"session": None, "builder": None})
    _check_cap(alone, caps, "raise the cap, or start a new run with --stop-at-budget")


_HINT = (
    "to stop the run at the cap: --stop-at-budget; or lower the steps' timeouts or `budget: {minutes: N}` of the job, "
    "run fewer steps with --steps, or raise the cap"
)


def _check_cap(saved: SavedPlan, caps: list[Cap], hint: str = _HINT) -> None:
    cap = min(caps, key=lambda one: one.usd, default=None)
    worst = saved.worst_case_usd + saved.builder_usd
    if cap is not None and worst > cap.usd + 1e-9:
        raise BudgetError(
            f"{saved.plan.job} on {saved.target.name} may cost {dollars(worst)}, more than the cap of"
            f" {dollars(cap.usd)} ({cap.name})",
            cause=_why(saved),
            hint=hint,
        )


def _why(saved: SavedPlan) -> str:
    """What the worst case is made of."""
    steps = f"its steps may take {saved.worst_case_minutes:.0f} minutes"
    rate = saved.worst_rate
    if saved.fence_s is not None:
        steps += f"; with boot and transfers, the machine may run for {saved.fence_s / 60:.0f} minutes"
    also = ""
    if saved.builder is not None:
        also = f"; {saved.builder.target.name}, which compiles for it, may cost {dollars(saved.builder_usd)}"
    return f"{steps}, at ${rate:.2f} an hour{also}"


def tree_name(project: str, root: Path) -> str:
    """The name of the tree on the host: two checkouts of one project, or two laptops, do not share one."""
    place = f"{socket.gethostname()}\0{root.resolve()}"
    return f"{ids.slug(project)[:40]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
