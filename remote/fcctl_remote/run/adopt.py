"""Steps that were carried out elsewhere: their documents, put where this run's gates and steps look for them."""

import os

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import STEP_ID, RunLayout
from fcctl_remote.base.refusal import Refusal
from fcctl_remote.base.tree import path_fault


def check(plan: wire.RunPlan) -> None:
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
            if path_fault(ref.path) or not ref.path.startswith("steps/%s/" % step_id):
                raise Refusal("bad_request", "%r is no place for a document of %r" % (ref.path[:200], step_id))


def place(run: RunLayout, plan: wire.RunPlan) -> None:
    """Write the documents; to be called before the run can begin. Writing them twice is harmless."""
    for finished in plan.adopted:
        for index, ref in enumerate(finished.result.documents):
            path = os.path.join(run.folder, ref.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.write_atomic(path, files.to_json(finished.documents[index]), durable=False)
