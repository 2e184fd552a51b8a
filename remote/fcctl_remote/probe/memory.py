"""What preflight found, for later runs: of one boot and one environment, while no file that it looked at changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping

from fcctl_remote.base import files
from fcctl_remote.probe.document import VARIABLES
from fcctl_remote.probe.environment import key_of, load_facts
from fcctl_remote.record import Any

NAME = "preflight.json"
GOOD = ("pass", "warn")


def recall(root: str, require: str) -> dict[str, Any] | None:
    """The document that :func:`keep` kept, if it still holds."""
    try:
        kept = files.read_object(os.path.join(root, NAME)) or {}
        document = kept["document"]
        holds = document["summary"]["status"] in GOOD and document["time"] > 0
        return document if holds and kept["key"] == _key(root, require) else None
    except (OSError, LookupError, TypeError):
        return None


def keep(root: str, document: Mapping[str, Any]) -> None:
    """Keeps a document without an error; what failed is looked at again each time."""
    if document["summary"]["status"] in GOOD:
        content = {"key": _key(root, document["require"]), "document": document}
        with contextlib.suppress(OSError):  # a full disk costs only time
            files.write_atomic(os.path.join(root, NAME), files.to_json(content), durable=False, mode=0o600)


def _key(root: str, require: str) -> str:
    env = dict(os.environ)
    given = [env.get(name) for name in VARIABLES if name != "PATH"]
    inputs = [key_of(env, root), load_facts(env, root)["watched"], require, given]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
