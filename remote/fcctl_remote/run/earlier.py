"""Documents of steps that ran elsewhere, and the working folder and artifacts of the run that this one resumes."""

import os
import shutil

from fcctl_remote import wire
from fcctl_remote.base import files, tree
from fcctl_remote.base.layout import STEP_ID, Layout, RunLayout
from fcctl_remote.base.refusal import Refusal
from fcctl_remote.run import lost
from fcctl_remote.run import state as runs


def check_adopted(plan: wire.RunPlan) -> None:
    """Raises: Refusal: bad_request, if an adopted step has no acceptable name, or a document no place of its own."""
    taken = {step.id for step in plan.steps}
    for finished in plan.adopted:
        step_id = finished.result.id
        if not STEP_ID.fullmatch(step_id) or step_id in taken:
            raise Refusal("bad_request", "the adopted step %r needs an id of its own" % step_id[:80])
        taken.add(step_id)
        if len(finished.documents) != len(finished.result.documents):
            raise Refusal("bad_request", "the adopted step %r does not come with all its documents" % step_id)
        for ref in finished.result.documents:
            if tree.path_fault(ref.path) or not ref.path.startswith("steps/%s/" % step_id):
                raise Refusal("bad_request", "%r is no place for a document of %r" % (ref.path[:200], step_id))


def place_adopted(run: RunLayout, plan: wire.RunPlan) -> None:
    """Write the documents before the run can begin. Writing them twice is harmless."""
    for finished in plan.adopted:
        for index, ref in enumerate(finished.result.documents):
            path = os.path.join(run.folder, ref.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.write_atomic(path, files.to_json(finished.documents[index]), durable=False)


def inherit(layout: Layout, run: RunLayout, plan: wire.RunPlan) -> None:
    """Give ``run`` the folders of ``plan.resume_from``. Doing it twice is harmless.

    The working folder stays where it is, because build files may hold its path; this run's is a link to it. Artifacts
    are shared by hard links: the other run's are collected.

    Raises:
        Refusal: conflict, if the other run is not on this host, still runs, or was of another source.
    """
    if plan.resume_from is None or os.path.lexists(run.source):
        return
    earlier = layout.run(plan.resume_from)
    before = runs.load_plan(earlier)
    if before is None or not os.path.isdir(earlier.source):
        raise Refusal("conflict", "nothing of run %s is left on this host" % plan.resume_from, "start the job anew")
    if before.tree_sha256 != plan.tree_sha256:
        raise Refusal("conflict", "run %s was of another source" % plan.resume_from, "start the job anew")
    if not lost.write_lost_outcome(earlier):
        raise Refusal("conflict", "run %s has not ended" % plan.resume_from, "see how it stands: fcctl ps")
    os.makedirs(run.folder, exist_ok=True)
    if not os.path.islink(earlier.artifacts) and os.path.isdir(earlier.artifacts):
        tree.remove_tree(run.artifacts)  # of an attempt that was cut off
        _share(earlier.artifacts, run.artifacts)
    os.symlink(os.path.realpath(earlier.source), run.source)


def _share(source: str, target: str) -> None:
    """A second name for each file and link below ``source``; a copy where the file system has no such thing."""
    for top, children in files.walk(source):
        folder = os.path.join(target, os.path.relpath(top, source))
        os.makedirs(folder, exist_ok=True)
        for child in children:
            link = child.is_symlink()
            if link or child.is_file(follow_symlinks=False):
                name = os.path.join(folder, child.name)
                try:
                    os.link(child.path, name, follow_symlinks=False)
                except OSError:
                    shutil.copy2(child.path, name, follow_symlinks=False)
