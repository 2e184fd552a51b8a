"""Steps in a container: the host program stays outside, the step's script runs in the image of ``container``.

The run's folder, its source and ``$FCCTL_CACHE`` are in the container at their own paths, the user is the same, and so
are the variables that job, target, step and fcctl set. PATH, CUDA and Python are the image's. The client of docker is
the step's process: it passes SIGTERM on, but its own death ends no container, so :func:`remove` does.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

from fcctl_remote import wire
from fcctl_remote.base import files, programs
from fcctl_remote.base.hostfacts import user_name
from fcctl_remote.base.layout import Layout, RunLayout, StepLayout
from fcctl_remote.probe import gpu

LABEL = "fcctl.run"
ASK_TIMEOUT_S = 30.0
#: docker could not start the container, or lost it.
ITS_OWN_FAILURE = 125
#: Variables beside those of job, target and step that a step needs there; of others the image has its own.
_KEPT = (
    "LANG", "LC_ALL", "TZ", "PYTHONUNBUFFERED", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_CUDA_ARCH_LIST", "CUDAARCHS",
    "CUDA_VISIBLE_DEVICES", "http_proxy", "https_proxy", "no_proxy", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "CCACHE_DIR",
)  # fmt: skip
#: The first process there (after docker's init): SIGTERM goes to all that the script started, which then may tidy up.
_WRAPPER = """\
[ -z "$1" ] || . "$1"
PATH=$FCCTL_RUN_DIR/bin:$PATH
set -m
ended=
trap 'ended=1; kill -TERM -- -$pid' TERM
bash -eo pipefail "$0" & pid=$!
wait $pid; code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
while [ "$ended" ] && kill -0 -- -$pid 2>/dev/null; do sleep 0.05; done
exit $code
"""
_TORCH = "python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"torch\") is None)'"
_CXX = "command -v c++ || command -v g++ || command -v clang++"


def lacking(image: str, needs: Iterable[wire.Needs], env: Mapping[str, str]) -> tuple[str, str] | None:
    """Why the step cannot run in ``image`` and what to do; None if it can. An image that is not there is pulled by the
    step itself, so its tools are not asked for."""
    docker = programs.which("docker", env)
    if docker is None:
        hint = "install it there (https://docs.docker.com/engine/install) and nvidia-container-toolkit for its GPU, or "
        return "this machine has no docker, which `container` needs", hint + "leave `container` out"
    server = programs.run([docker, "version", "--format", "{{.Server.Version}}"], ASK_TIMEOUT_S, env)
    if not server.ok:
        if "permission denied" in server.err.lower():
            hint = "on the machine: sudo usermod -aG docker %s, then log in again" % user_name()
            return "%s may not use docker on this machine" % user_name(), hint
        return "docker does not run on this machine: %s" % server.err.strip()[:300], "sudo systemctl start docker"
    missing = _missing(docker, image, [tool for one in needs for tool in one.tools], env)
    if missing:
        message = "the image %s has no %s" % (image, " and no ".join(missing))
        return message, "choose an image with these programs: `container` in the job"
    return None


def _missing(docker: str, image: str, tools: Sequence[str], env: Mapping[str, str]) -> list[str]:
    if not tools or not programs.run([docker, "image", "inspect", image], ASK_TIMEOUT_S, env).ok:
        return []
    tests = {tool: {"torch": _TORCH, "cxx": _CXX}.get(tool, "command -v " + shlex.quote(tool)) for tool in tools}
    script = "\n".join("{ %s; } >/dev/null 2>&1 || echo %s" % (test, tool) for tool, test in tests.items())
    argv = [docker, "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", script]
    return programs.run(argv, ASK_TIMEOUT_S, env).out.split()


def command(
    layout: Layout,
    run: RunLayout,
    place: StepLayout,
    plan: wire.RunPlan,
    spec: wire.StepSpec,
    env: dict[str, str],
    secrets: str | None,
) -> list[str]:
    """argv of the step. ``env`` is that of docker's client, which gives variables to the container by name: HOME and
    FCCTL_PYTHON are set in it. ``secrets``: a file in memory that sets the secrets; docker writes variables to disk."""
    own = {**plan.env, **spec.env}
    home = os.path.join(layout.cache_of(plan.workspace), "home")
    files.make_folders(home, 0o700)
    inside = {"HOME": home, "FCCTL_PYTHON": "python3"}
    env.update({name: value for name, value in inside.items() if name not in own})
    names = [name for name in env if name in own or name in inside or name in _KEPT or name.startswith("FCCTL_")]
    options = ["--rm", "--init", "--name", name_of(run, spec), "--label", "%s=%s" % (LABEL, run.run_id)]
    options += ["--user", "%d:%d" % (os.getuid(), os.getgid()), "--network", "host", "--ipc", "host"]
    options += ["--gpus", "all"] if gpu.visible() else []
    mounts = {os.path.realpath(run.source), run.folder, layout.cache_of(plan.workspace)}
    read = [layout.runner, *([secrets] if secrets else [])]
    for folder in sorted(mounts):
        options += ["--volume", "%s:%s" % (folder, folder)]
    for path in read:
        options += ["--volume", "%s:%s:ro" % (path, path)]
    for name in sorted(names):
        options += ["--env", name]
    program = programs.which("docker", env) or "docker"
    options += ["--workdir", run.source, "--entrypoint", "bash", str(plan.container)]
    return [program, "run", *options, "-c", _WRAPPER, place.script, secrets or ""]


def name_of(run: RunLayout, spec: wire.StepSpec) -> str:
    return "fcctl-%s-%s" % (run.run_id, spec.id)


def remove(run_id: str, env: Mapping[str, str]) -> str | None:
    """Kills and removes the run's containers. Returns what went wrong, None if none is left."""
    docker = programs.which("docker", env)
    if docker is None:
        return "docker is not on PATH any more"
    listed = programs.run([docker, "ps", "-aq", "--filter", "label=%s=%s" % (LABEL, run_id)], ASK_TIMEOUT_S, env)
    found = listed.out.split()
    done = programs.run([docker, "rm", "-f", *found], ASK_TIMEOUT_S, env) if listed.ok and found else listed
    gone = done.ok or "removal of container" in done.err  # --rm is about to, too
    return None if gone else (done.err.strip()[:300] or "docker did not answer")
