"""``fcctl-host probe``: preflight on this machine, as a program and as a job's step."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base import files
from fcctl_remote.base.text import one_line
from fcctl_remote.probe.checks import SECTIONS
from fcctl_remote.probe.document import REQUIRE, VARIABLES, collect
from fcctl_remote.probe.environment import key_of, load_facts


def main(argv: list[str] | None = None, root: str | None = None) -> int:
    """``fcctl-host probe [--json] [--out DIR] [--require auto|gpu|none] [--once]``; returns :func:`exit_code`.

    ``root``: the host's folder, in which ``--once`` finds what an earlier probe of this boot left.
    """
    parser = argparse.ArgumentParser(prog="fcctl-host probe", description="Check this machine for CUDA work.")
    parser.add_argument("--json", action="store_true", help="print the environment document")
    parser.add_argument("--out", metavar="DIR", help="also write DIR/environment.json")
    parser.add_argument(
        "--require", choices=REQUIRE, default="auto",
        help="gpu: fail without a working GPU; none: GPUs do not matter; auto (default): gpu if one is installed",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true", help="use what an earlier probe of this boot found, if that did not fail"
    )
    options = parser.parse_args(argv)
    document = _recall(root, options.require) if options.once and root else None
    if document is not None:
        print("as found %d minutes ago; again: fcctl run preflight" % ((time.time() - document["time"]) // 60))
    else:
        document = collect(require=options.require)
        if root:
            _keep(root, document)
    if options.out:
        try:
            _write(options.out, document)
        except OSError as error:
            print("error: cannot write the environment document: %s" % error, file=sys.stderr)
            return 2
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(render(document, color).encode("utf-8", "replace").decode("utf-8"))
    return exit_code(document)


def exit_code(document: Mapping[str, Any]) -> int:
    """0 all checks passed, 1 there are warnings, 2 there are critical errors."""
    return {"pass": 0, "warn": 1}.get(document["summary"]["status"], 2)


def _write(folder: str, document: dict[str, Any]) -> None:
    os.makedirs(folder, exist_ok=True)
    data = json.dumps(document, indent=2).encode("utf-8")
    files.write_atomic(os.path.join(folder, "environment.json"), data, durable=False)


#: What preflight found, for later runs of one boot and one environment, while no file that it looked at changes.
KEPT = "preflight.json"
GOOD = ("pass", "warn")


def _recall(root: str, require: str) -> dict[str, Any] | None:
    """The document that :func:`_keep` kept, if it still holds."""
    try:
        kept = files.read_object(os.path.join(root, KEPT)) or {}
        document = kept["document"]
        holds = document["summary"]["status"] in GOOD and document["time"] > 0
        return document if holds and kept["key"] == _key(root, require) else None
    except (OSError, LookupError, TypeError):
        return None


def _keep(root: str, document: Mapping[str, Any]) -> None:
    """Keeps a document without an error; what failed is looked at again each time."""
    if document["summary"]["status"] in GOOD:
        content = {"key": _key(root, document["require"]), "document": document}
        with contextlib.suppress(OSError):  # a full disk costs only time
            files.write_atomic(os.path.join(root, KEPT), files.to_json(content), durable=False, mode=0o600)


def _key(root: str, require: str) -> str:
    env = dict(os.environ)
    given = [env.get(name) for name in VARIABLES if name != "PATH"]
    inputs = [key_of(env, root), load_facts(env, root)["watched"], require, given]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


_LABELS = {"pass": "[PASS]", "warn": "[WARN]", "fail": "[FAIL]", "info": "[INFO]"}
_COLORS = {"pass": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m", "info": "\x1b[36m"}
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"
_WIDTH = 72


def render(document: Mapping[str, Any], color: bool = False) -> str:
    """Sections of checks, a summary with counts, and one last [PASS], [WARN] or [FAIL] line."""
    lines: list[str] = []
    checks = document["checks"]
    others = sorted({str(c["section"]) for c in checks} - set(SECTIONS))
    for section in (*SECTIONS, *others):
        rows = [c for c in checks if c["section"] == section]
        if not rows:
            continue
        title = "%s %s" % (section, "-" * max(3, _WIDTH - len(section) - 1))
        lines += ["", _BOLD + title + _RESET if color else title]
        for check in rows:
            lines += _check(check, color)
    summary = document["summary"]
    title = "Summary " + "-" * (_WIDTH - 8)
    lines += ["", _BOLD + title + _RESET if color else title]
    lines.append("%d passed, %s, %s" % (summary["passed"], *_counts(summary)))
    lines.append("%s %s" % (_label(summary["status"], color), _verdict(summary)))
    return "\n".join(lines).lstrip("\n") + "\n"


def _check(check: Mapping[str, Any], color: bool) -> list[str]:
    lines = ["%s %s" % (_label(check["status"], color), one_line(str(check["message"]), 1000))]
    if check.get("hint") and check["status"] != "pass":
        lines.append("       hint: " + one_line(str(check["hint"]), 1000))
    return lines


def _label(status: str, color: bool) -> str:
    label = _LABELS.get(status, "[INFO]")
    return "%s%s%s" % (_COLORS.get(status, ""), label, _RESET) if color else label


def _counts(summary: Mapping[str, Any]) -> list[str]:
    warnings, errors = summary["warnings"], summary["errors"]
    return [
        "%d warning%s" % (warnings, "" if warnings == 1 else "s"),
        "%d critical error%s" % (errors, "" if errors == 1 else "s"),
    ]


def _verdict(summary: Mapping[str, Any]) -> str:
    warnings, errors = _counts(summary)
    words: dict[str, str] = {
        "pass": "preflight: all checks passed",
        "warn": "preflight: usable, with %s" % warnings,
        "fail": "preflight: %s, %s: fix them before any GPU work" % (errors, warnings),
    }
    return words[summary["status"]]
