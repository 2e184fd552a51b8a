"""Steps in a container: the host program stays outside, the step's script runs in the image of ``container``.

The run's folder, its source and ``$FCCTL_CACHE`` are in the container at their own paths, the user is the same, and so
are the variables that job, target, step and fcctl set. PATH, CUDA and Python are the image's. The client of docker is
the step's process: it passes SIGTERM on, but its own death ends no container, so :func:`remove` does.

A computer without nvcc may have it in a container, too: a program ``nvcc`` on the PATH of its steps starts that, with
the folders that its command line names at the same paths, and without a network.
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
        hint = "install it on the machine (https://docs.docker.com/engine/install) and nvidia-container-toolkit"
        return "this machine has no docker, which `container` needs", hint + " for its GPU, or remove `container`"
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


#: The image's name, in the environment of steps that may use it.
IMAGE = "FCCTL_CUDA_IMAGE"
RUNTIMES = ("docker", "podman")
INSPECT_TIMEOUT_S = 20.0
#: What is below these is the image's own.
_SYSTEM = ("/bin", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
#: After these a path is written to.
_OUTPUTS = ("-o", "--output-file", "-odir", "--output-directory", "--keep-dir", "-MF", "--dependency-output")
_PASSED = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")


def runtime(image: str, env: Mapping[str, str]) -> str | None:
    """The first container program on PATH that works and has ``image``. Nothing is downloaded."""
    for name in RUNTIMES:
        program = programs.which(name, env)
        if program and programs.run([program, "image", "inspect", image], INSPECT_TIMEOUT_S, env).ok:
            return program
    return None


def hint(image: str, env: Mapping[str, str]) -> str:
    """How a computer gets an nvcc, or a container with one."""
    name = next((name for name in RUNTIMES if programs.which(name, env)), None)
    if name is None:
        return (
            "install the CUDA toolkit, or Docker or Podman, then: docker pull %s; or give the target a `builder`"
            % image
        )
    return "start %s if it is not running, then: %s pull %s" % (name, name, image)


def nvcc_command(program: str, image: str, arguments: Sequence[str], env: Mapping[str, str], folder: str) -> list[str]:
    """argv of ``nvcc ARGUMENTS`` in a container of ``image``; ``folder`` is the working directory."""
    user = "%d:%d" % (os.getuid(), os.getgid())
    whose = ["--userns=keep-id"] if os.path.basename(program) == "podman" else ["--user", user]
    passed = [word for name in _PASSED if name in env for word in ("--env", name)]
    mounts = [word for mount in _mounts(arguments, env, folder) for word in ("--volume", mount)]
    options = ["--rm", "--init", "--network", "none", "--pull", "never", *whose, *passed, *mounts]
    return [program, "run", *options, "--workdir", folder, "--entrypoint", "nvcc", image, *arguments]


def _mounts(arguments: Sequence[str], env: Mapping[str, str], folder: str) -> list[str]:
    """``FOLDER:FOLDER``, with ``:ro`` where nvcc only reads."""
    written = {folder, env.get("FCCTL_RUN_DIR") or folder}
    read: set[str] = set()
    for before, word in zip(["", *arguments], arguments):  # noqa: B905 (Python 3.8)
        path = _folder_of(word)
        output = before in _OUTPUTS or word.startswith(("-o/", *(option + "=" for option in _OUTPUTS)))
        if path is not None:
            (written if output else read).add(path)
    read = {path for path in read if not any(_within(path, above) for above in written)}
    return ["%s:%s" % (path, path) for path in sorted(written)] + ["%s:%s:ro" % (path, path) for path in sorted(read)]


def _folder_of(word: str) -> str | None:
    """The folder of the absolute path in ``word``, which may follow an option (``-I/x``, ``--output-file=/x/y``)."""
    start = word.find("/")
    if start < 0 or (start > 0 and not word.startswith("-")):
        return None
    path = os.path.normpath(word[start:])
    path = path if os.path.isdir(path) else os.path.dirname(path)
    shared = path.count("/") >= 2 and not any(_within(path, system) for system in _SYSTEM)
    return path if shared and os.path.isdir(path) else None


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
