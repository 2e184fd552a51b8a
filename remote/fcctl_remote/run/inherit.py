"""Going on where another run was cut off: its working folder, with what its finished steps built, and its artifacts."""

import os
import shutil

from fcctl_remote import wire
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.base.refusal import Refusal
from fcctl_remote.run import lost
from fcctl_remote.run import state as runs


def inherit(layout: Layout, run: RunLayout, plan: wire.RunPlan) -> None:
    """Give ``run`` the folders of ``plan.resume_from``. Doing it twice is harmless.

    The working folder stays where it is, because what was built in it may hold its path; this run's is a link to it.
    Artifacts are shared by hard links: the other run's are home.

    Raises:
        Refusal: conflict, if the other run is not on this host any more, goes on, or was of another source.
    """
    if plan.resume_from is None or os.path.lexists(run.source):
        return
    earlier = layout.run(plan.resume_from)
    before = runs.load_plan(earlier)
    if before is None or not os.path.isdir(earlier.source):
        raise Refusal("conflict", "nothing of run %s is left on this host" % plan.resume_from, "start the job anew")
    if before.tree_sha256 != plan.tree_sha256:
        raise Refusal("conflict", "run %s was of another source" % plan.resume_from, "start the job anew")
    if not lost.settle(earlier):
        raise Refusal("conflict", "run %s has not ended" % plan.resume_from, "see how it stands: fcctl ps")
    os.makedirs(run.folder, exist_ok=True)
    if os.path.isdir(earlier.artifacts):
        shutil.rmtree(run.artifacts, ignore_errors=True)  # of an attempt that was cut off
        shutil.copytree(earlier.artifacts, run.artifacts, symlinks=True, copy_function=_share)
    os.symlink(os.path.realpath(earlier.source), run.source)


def _share(source: str, target: str) -> None:
    """A second name for the same content; a copy where the file system has no such thing."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
