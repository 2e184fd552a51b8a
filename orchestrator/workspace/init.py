"""``fcctl init``: inspects a folder and writes a configuration and a first job for it."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.base.errors import ConflictError, NotFoundError
from orchestrator.base.files import alone_in, make_folders, write_atomic
from orchestrator.base.run_id import slug
from orchestrator.runs.job.files import example_workspace
from orchestrator.runs.job.job import MAX_JOB_NAME
from orchestrator.workspace import starter
from orchestrator.workspace.findings import MAIN, MAX_SOURCES, files_below, read_text
from orchestrator.workspace.inspection import gpu_scripts, has_build, inspect_folder, runs_kernels

#: Folders of FlashCore's workspace, beside its fcctl.toml.
_EXAMPLE = ("jobs", "kernels/flashcore", "tune")
_MAX_PROJECTS = 100
#: Their scripts are run from the folder above them.
_NO_PROJECTS = {"bench", "benchmark", "benchmarks", "scripts", "test", "tests"}
_JOBS = "jobs"
#: Runs are data of this machine.
_RESULTS_IGNORE = "runs/\nactive/\nschedules/\nsessions/\nmachines.jsonl\nindex.sqlite*\n"
_REACHED = "# Your GPU machine. To check whether fcctl can reach it: fcctl doctor --on gpu"
_NO_HOST = "# A GPU machine reached over SSH: uncomment these lines and set your host."


def _config_text(name: str, host: str | None, jobs: str) -> str:
    """A commented fcctl.toml for a project called ``name``; with ``host``, an ssh target ``gpu`` that reaches it."""
    mark = "" if host else "# "
    return f"""\
# fcctl: where kernels run. All keys: fcctl help configuration; to see the current values: fcctl config show --origin

[project]
name = "{name}"            # name of the source folder on the GPU machine
{"# " if jobs == _JOBS else ""}jobs = "{jobs}"             # folder of the job files
# results = "results"       # folder of the collected results

# The target "local" is this computer and always exists: fcctl run first --on local
{_REACHED if host else _NO_HOST}
{mark}[targets.gpu]
{mark}kind = "ssh"
{mark}host = "{host or "gpu-box"}"            # a name, an address, or an alias of ~/.ssh/config
# user = "me"
# port = 22
# usd_per_hour = 0.75       # your price of one hour, for the reports

# An L4 on Google Cloud: fcctl starts (or creates) it, and stops it after each run. Set-up: fcctl help gcp; to try it
# without an account: fcctl run preflight --on sandbox; what a run would cost: fcctl cost plan first --on l4
# [targets.l4]
# kind = "gcp"
# project = "my-project"
# instance = "my-l4"
# zones = ["us-west1-c", "us-west1-a", "us-central1-a"]

# [budget]
# per_run_usd = 2.0         # a run that may cost more is refused
"""


@dataclass
class Written:
    """What ``init`` did. Paths are absolute."""

    root: Path
    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    backups: list[Path] = field(default_factory=list)
    jobs: list[str] = field(default_factory=lambda: ["first"])
    jobs_folder: str = _JOBS
    name: str | None = None
    empty: bool = False  # nothing to build or run was found
    #: The top of the git repository, if the workspace is a part of it.
    repository: Path | None = None
    #: Submodules that are not checked out: their files are missing in every run.
    submodules: list[str] = field(default_factory=list)


def init(folder: Path, *, host: str | None = None, force: bool = False) -> Written:
    """Make ``folder`` a workspace. Nothing that is there is lost: with ``force`` the old files are kept as ``*.bak``.
    Raises NotFoundError: there is no such folder; ConflictError: there is a fcctl.toml already, or a folder cannot be
    written."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is not a folder", hint=f"mkdir -p {shlex.quote(str(folder))}")
    try:
        with alone_in(folder):  # serializes concurrent calls
            _check(folder, force=force)
            done = Written(folder, repository=_repository_above(folder))
            _write_all(done, host, force)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return done


def init_example(folder: Path, *, force: bool = False) -> Written:
    """Write FlashCore's workspace to ``folder``, which is created. Old files are treated, and errors raised, as by
    :func:`init`."""
    folder = folder.absolute()
    try:
        make_folders(folder)
        with alone_in(folder):
            _check(folder, force=force)
            done = Written(folder, jobs=["phase0"])
            source = example_workspace()
            paths = [source / "fcctl.toml", *(path for part in _EXAMPLE for path in _all_files(source / part))]
            for path in reversed(paths):  # fcctl.toml, which makes it a workspace, is the last
                _write(done, folder / path.relative_to(source), path.read_bytes(), replace=force)
            _write(done, folder / "results" / ".gitignore", _RESULTS_IGNORE, replace=False)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return done


def _not_writable(folder: Path, error: OSError) -> ConflictError:
    hint = f"ls -ld {shlex.quote(str(folder))}"
    return ConflictError(f"cannot write in {folder}", cause=error.strerror, hint=hint)


def _all_files(folder: Path) -> Iterator[Path]:
    """The files below ``folder`` that a build or an editor did not leave."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", "build"))
        yield from (Path(place, name) for name in sorted(files) if not name.endswith((".pyc", ".so", "~")))


def _check(folder: Path, *, force: bool) -> None:
    if (folder / "fcctl.toml").exists() and not force:
        raise ConflictError(
            f"{folder / 'fcctl.toml'} exists",
            cause="this folder is already a workspace",
            hint="to check it: fcctl doctor; to replace its files and keep the old ones as *.bak: fcctl init --force",
        )
    for name in ("jobs", "results"):
        if (folder / name).exists() and not (folder / name).is_dir():
            raise ConflictError(
                f"{folder / name} is not a folder",
                cause=f"a workspace needs a folder named {name}",
                hint=f"rename the file, or write a fcctl.toml with another `{name}` below [project]: fcctl help"
                " configuration",
            )


def _repository_above(folder: Path) -> Path | None:
    if (folder / ".git").exists():
        return None
    return next((above for above in folder.resolve().parents if (above / ".git").exists()), None)


def _write_all(done: Written, host: str | None, force: bool) -> None:
    done.submodules = list(_empty_submodules(done.root))
    projects = _projects(done.root)
    done.jobs = list(projects) or done.jobs
    done.name = slug(done.root.resolve().name)[:48].strip("-")
    done.jobs_folder = _jobs_folder(done.root)
    _write(done, done.root / "fcctl.toml", _config_text(done.name, host, done.jobs_folder), replace=force)
    for job in done.jobs:
        place = projects.get(job)
        text = starter.job_text(inspect_folder(done.root / (place or "")), job, place)
        done.empty = place is None and starter.NOTHING in text
        _write(done, done.root / done.jobs_folder / f"{job}.yaml", text, replace=force)
    _write(done, done.root / "results" / ".gitignore", _RESULTS_IGNORE, replace=False)


def _jobs_folder(root: Path) -> str:
    """Another name for it if the folder ``jobs`` has YAML of another program."""
    texts = map(read_text, (root / _JOBS).glob("*.yaml"))
    return _JOBS if all(re.search(r"^job[ \t]*:", text, re.MULTILINE) for text in texts) else "fcctl-jobs"


def _empty_submodules(folder: Path) -> Iterator[str]:
    for path in re.findall(r"^[ \t]*path\s*=\s*(.+?)\s*$", read_text(folder / ".gitmodules"), re.MULTILINE):
        if path.isprintable() and (folder / path).is_dir() and next((folder / path).glob("*"), None) is None:
            yield path


def _write(done: Written, path: Path, content: str | bytes, *, replace: bool) -> None:
    make_folders(path.parent)
    if path.exists() or path.is_symlink():
        if not replace:
            done.kept.append(path)
            return
        backup = _free_backup(path)
        path.rename(backup)
        done.backups.append(backup)
    write_atomic(path.parent, path.name, content.encode() if isinstance(content, str) else content)
    done.written.append(path)


def _free_backup(path: Path) -> Path:
    number = 1
    while (backup := path.with_name(f"{path.name}.bak{number if number > 1 else ''}")).exists():
        number += 1
    return backup


def _projects(folder: Path) -> dict[str, str]:
    """Job name -> folder below ``folder``, of those that build or run on their own, if ``folder`` itself has nothing
    that does, and one of them has a build or a script for the GPU, or they have more programs than one job runs."""
    runs = any(MAIN.search(read_text(path)) for path in folder.glob("*.cu"))
    if runs or has_build(folder) or any(gpu_scripts(folder)):
        return {}
    found: dict[Path, bool] = {}
    programs = 0
    for place in dict.fromkeys(path.parent for path in files_below(folder) if path.parent != folder):
        if not any(above in found for above in place.parents) and place.name not in _NO_PROJECTS:
            alone = has_build(place) or runs_kernels(place)
            mains = sum(MAIN.search(read_text(source)) is not None for source in place.glob("*.cu"))
            programs += mains
            if alone or mains:
                found[place] = alone
    several = any(found.values()) or programs > MAX_SOURCES
    paths = [place.relative_to(folder).as_posix() for place in found] if several else []
    jobs: dict[str, str] = {}
    for path in paths[:_MAX_PROJECTS]:
        jobs[_job_name(path, jobs)] = path
    return jobs


def _job_name(path: str, taken: Collection[str]) -> str:
    """``path`` as a job's name, without its first parts if it is too long, with a number if it is ``taken``."""
    name = slug(path.replace("/", "-"))
    while len(name) > MAX_JOB_NAME and "-" in name:
        name = name.partition("-")[2]
    name = name[:MAX_JOB_NAME]
    numbered = (f"{name[: MAX_JOB_NAME - 4]}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)
