"""The environment a step runs in, and a virtual environment of a run's own on top of the machine's Python with torch.

That is made by a ``.pth`` file: the Python below is often in a virtual environment itself, whose packages
``--system-site-packages`` does not show.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts
from fcctl_remote.base.layout import Layout, RunLayout, StepLayout
from fcctl_remote.base.programs import ask, run, which
from fcctl_remote.probe import docker, environment
from fcctl_remote.probe.environment import apply_facts, resolve_environment
from fcctl_remote.record import Any
from fcctl_remote.wire import Refusal

#: Belongs to the connection that submitted the run, not to the run; the agent's socket would even be a credential.
CONNECTION_ONLY = (
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "SSH_ORIGINAL_COMMAND", "TMUX", "TMUX_PANE", "TERM",
    "OLDPWD", "PWD", "SHLVL", "_", "FCCTL_ROOT",
)  # fmt: skip


#: Compiler caches: the variable that names one, and its folder in ``$FCCTL_CACHE``.
CACHES = {
    "TORCH_EXTENSIONS_DIR": "torch_extensions", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CCACHE_DIR": "ccache",
}  # fmt: skip


def of_submission(secrets: Sequence[str] = ()) -> dict[str, str]:
    """What a run takes over from the call that submitted it, whatever the tmux server was started with. It is written
    to a file, so without ``secrets``: on this computer itself they are in the environment."""
    return {name: value for name, value in os.environ.items() if name not in (*CONNECTION_ONLY, *secrets)}


def for_run(
    layout: Layout, run: RunLayout, plan: wire.RunPlan, runner: list[str], warn: Callable[[str], None]
) -> dict[str, str]:
    """The part all steps of a run share."""
    base: dict[str, str] = {**_base(run), **plan.env}
    if plan.python and "FCCTL_PYTHON" not in plan.env:
        base.update(environment.activated(plan.python, base))
    try:
        resolved = resolve_environment(base, layout.root)
    except Exception as error:  # noqa: BLE001 - a machine we cannot make out may still build and test
        warn("the CUDA environment could not be determined: %s: %s" % (type(error).__name__, error))
        resolved = apply_facts(base, {})
    env = {"PYTHONUNBUFFERED": "1", **base, **resolved}
    _write_shim(run, runner)
    if plan.sudo_ncu and plan.container is None:
        _write_ncu(run, env)
    env["PATH"] = run.bin + os.pathsep + env.get("PATH", os.defpath)
    env["FCCTL_RUN_ID"] = run.run_id
    env["FCCTL_JOB"] = plan.job
    env["FCCTL_RUN_DIR"] = run.folder
    env["FCCTL_ARTIFACTS"] = run.artifacts
    env["FCCTL_HOST"] = run.shim
    _offer_nvcc(run, env, warn)
    if plan.container is None:
        _write_ninja(run, env)
    cache = layout.cache_of(plan.workspace)
    files.make_folders(cache, 0o700)
    env["FCCTL_CACHE"] = cache
    for name, folder in CACHES.items():
        env.setdefault(name, os.path.join(cache, folder))
    return env


def _offer_nvcc(run: RunLayout, env: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """nvcc in a container, if the controller named an image for the steps on this computer and it has no nvcc."""
    image = env.get(docker.IMAGE)
    if not image or which("nvcc", env) is not None:
        return
    program = docker.runtime(image, env)
    if program is not None:
        command = shlex.join([run.shim, "container-nvcc", program, image])
        _write_program(run, "nvcc", '#!/bin/sh\nexec %s "$@"\n' % command)
        warn("this computer has no nvcc; nvcc of %s runs in a container (%s)" % (image, os.path.basename(program)))


def for_step(shared: Mapping[str, str], run: RunLayout, step: wire.StepSpec) -> dict[str, str]:
    env = dict(shared)
    env.update(step.env)
    if "PATH" in step.env:
        env["PATH"] = run.bin + os.pathsep + step.env["PATH"]
    env["FCCTL_RUN_ID"] = run.run_id
    env["FCCTL_STEP"] = step.id
    env["FCCTL_OUT"] = run.step(step.id).out
    _find_beside_python(env)
    return env


def _find_beside_python(env: dict[str, str]) -> None:
    """What pip installs beside ``$FCCTL_PYTHON`` (ninja, cmake) is found by name, after all that was found before."""
    folder = os.path.dirname(env.get("FCCTL_PYTHON", ""))
    path = env.get("PATH", os.defpath).split(os.pathsep)
    if os.path.isabs(folder) and folder not in path:
        env["PATH"] = os.pathsep.join([*path, folder])


def _base(run: RunLayout) -> dict[str, str]:
    stored: Any = files.read_object(run.submission) or {}
    env = stored.get("env")
    if not isinstance(env, dict):
        return of_submission()
    return {str(name): str(value) for name, value in env.items()}


def _write_shim(run: RunLayout, runner: list[str]) -> None:
    """``fcctl-host``: this very host program, for use in steps."""
    files.own_folder(run.bin)
    python, *words = map(shlex.quote, runner)
    text = '#!/bin/sh\npython=%s\n[ -x "$python" ] || python=python3 # in a container\nexec "$python" %s "$@"\n'
    _write_program(run, "fcctl-host", text % (python, " ".join(words)))


def _write_program(run: RunLayout, name: str, text: str) -> None:
    """In front of the steps' PATH."""
    files.write_atomic(os.path.join(run.bin, name), text.encode(), durable=False, mode=0o755)


NCU_MESSAGE = "ncu ran through sudo, because only administrators may read GPU performance counters on this machine"
_NCU_MARK = "ncu-through-sudo"

# In front of PATH on a machine that fcctl owns. It decides each time, since counters may be opened while a run is on;
# it keeps the environment, and the step's user gets what ncu wrote in the run's folder, and its report elsewhere.
# sudo drops PATH and LD_LIBRARY_PATH whatever -E says, so they are set again; all others, secrets too, pass by -E.
_NCU = """\
#!/bin/sh
ncu=%(ncu)s
case " $* " in *" --import "*|*" -i "*|*" --version "*|*" --help "*|*" --query-metrics "*) exec "$ncu" "$@" ;; esac
grep -qs 'RmProfilingAdminOnly: *1' "${FCCTL_SYSTEM_ROOT-}/proc/driver/nvidia/params" || exec "$ncu" "$@"
[ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null || exec "$ncu" "$@"
echo "fcctl: only administrators may read GPU performance counters, so ncu runs through sudo" >&2
: >"${FCCTL_OUT%%/*}/%(mark)s"
mkdir -p %(folder)s/tmp
sudo -n -E env PATH="$PATH" LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}" HOME="$HOME" TMPDIR=%(folder)s/tmp "$ncu" "$@" &
pid=$!
trap 'sudo -n kill -TERM "$pid"' TERM INT HUP
wait "$pid"; code=$?
while kill -0 "$pid" 2>/dev/null || sudo -n kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done
user=$(id -u):$(id -g)
sudo -n chown -hR --from=0 "$user" %(folder)s
before=
for given in "$@"; do
  case "$before$given" in -o*|--export*) for report in "${given#--export=}" "${given#--export=}.ncu-rep"; do
    case "$report" in *.ncu-rep) [ ! -f "$report" ] || sudo -n chown -h --from=0 "$user" "$report" ;; esac
  done ;; esac
  case "$given" in -o|--export) before=$given ;; *) before= ;; esac
done
exit "$code"
"""


def _write_ncu(run: RunLayout, env: Mapping[str, str]) -> None:
    """``ncu`` through sudo where GPU counters are for administrators. ``env``: a step's, without the run's ``bin``."""
    ncu = hostfacts.which("ncu", env)
    if ncu is None or not hostfacts.IS_LINUX:
        return
    text = _NCU % {"ncu": shlex.quote(ncu), "mark": _NCU_MARK, "folder": shlex.quote(run.folder)}
    _write_program(run, "ncu", text)


# torch calls it in the build folder of an extension.
_NINJA = """\
#!/bin/sh
built=$(cd "${TORCH_EXTENSIONS_DIR:-/nowhere}" 2>/dev/null && pwd -P) || built=/nowhere
case "$(pwd -P)" in "$built"/?*) [ "$*" = --version ] || %(shim)s torch-build ;; esac
exec %(ninja)s "$@"
"""


def _write_ninja(run: RunLayout, env: Mapping[str, str]) -> None:
    """``ninja`` that compiles of a torch extension only what changed since an earlier run."""
    ninja = which("ninja", env) or which("ninja", {"PATH": os.path.dirname(env.get("FCCTL_PYTHON", ""))})
    if ninja is not None:
        text = _NINJA % {"shim": shlex.quote(run.shim), "ninja": shlex.quote(ninja)}
        _write_program(run, "ninja", text)


def used_sudo(step: StepLayout) -> bool:
    """Whether ncu ran through sudo in the step."""
    return os.path.lexists(os.path.join(step.folder, _NCU_MARK))


#: In the new environment, beside what is installed there, which goes first.
PTH = "fcctl-target.pth"
VENV_TIMEOUT_S = 300.0

# What the Python below says of itself, whatever modules lie where the step works.
_ASK_PACKAGES = """
import json, os
from importlib.util import find_spec
places = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages")) and os.path.isdir(p)]
print(json.dumps({"places": places, "pip": find_spec("pip") is not None}))
"""


def make_venv(folder: str, env: Mapping[str, str]) -> None:
    """Make one in ``folder`` that has pip and sees the packages of ``$FCCTL_PYTHON``; one that is there is kept. Raises
    Refusal: that Python does not run, or makes none."""
    python = env.get("FCCTL_PYTHON") or sys.executable
    below = _packages_of(python, env)
    # pip that is seen from below installs into the environment that runs it; to unpack another takes seconds.
    words = [python, "-I", "-m", "venv", *(["--without-pip"] if below["pip"] else []), os.path.abspath(folder)]
    done = run(words, VENV_TIMEOUT_S, env)
    if not done.ok:
        output = (done.out + done.err).strip()
        raise Refusal(
            "internal",
            "%s cannot create a virtual environment%s" % (python, ": " + output if output else ""),
            "on the machine: apt-get install python3-venv; or set another Python: FCCTL_PYTHON in `env` of the target",
        )
    lines = ["import site; site.addsitedir(%r)\n" % place for place in below["places"]]
    for place in glob.glob(os.path.join(glob.escape(folder), "lib", "python3*", "site-packages")):
        with open(os.path.join(place, PTH), "w", encoding="utf-8") as stream:
            stream.writelines(lines)


def _packages_of(python: str, env: Mapping[str, str]) -> dict[str, Any]:
    answer, done = ask(python, _ASK_PACKAGES, VENV_TIMEOUT_S, env)
    if not answer:
        raise Refusal(
            "internal",
            "%s does not run: %s" % (python, done.err.strip() or "exit code %s" % done.code),
            "set a Python of that machine: FCCTL_PYTHON in `env` of the target",
        )
    return answer


SEARCH_ASK_S = 10.0
_ASK_MODULES = """
import json
from importlib.util import find_spec
print(json.dumps({"version": list(sys.version_info[:2]), "lacks": [m for m in %r if find_spec(m) is None]}))
"""


def furnish_search(
    held: contextlib.ExitStack, layout: Layout, place: StepLayout, tuning: wire.Tuning, env: dict[str, str]
) -> tuple[str, str] | None:
    """Give a search its libraries, its spec, and a Python that can run both: FCCTL_TUNE, FCCTL_TUNE_SPEC,
    FCCTL_TUNE_PYTHON and PYTHONPATH in the step's ``env``.

    The libraries stay where they are until ``held`` is closed. Returns why the step cannot run, None if it can.
    """
    from fcctl_remote.base import bundles  # slow, and only searches have some

    try:
        folder = held.enter_context(bundles.Bundles(layout).in_use(tuning.bundle))
    except Refusal as refusal:
        return refusal.error.message, refusal.error.hint or "start the job again"
    needs = bundles.contents(folder)
    python, tried = _search_python(env, needs)
    if python is None:
        return _no_python(needs, tried, env)
    for made in (os.path.dirname(place.folder), place.folder):
        files.own_folder(made)
    files.write_atomic(place.spec, tuning.spec.encode("utf-8") + b"\n", durable=False)
    env["FCCTL_TUNE"] = folder
    env["FCCTL_TUNE_PYTHON"] = python
    env["FCCTL_TUNE_SPEC"] = place.spec
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, env.get("PYTHONPATH"))))
    return None


def _search_python(env: Mapping[str, str], needs: Mapping[str, Any]) -> tuple[str | None, list[tuple[str, str]]]:
    """The first Python for the libraries, the one with torch being asked first; or what each of them lacks, those that
    are new enough first."""
    least = [int(part) for part in str(needs.get("python", "3.9")).split(".")]
    old: list[tuple[str, str]] = []
    lacking: list[tuple[str, str]] = []
    for python in environment.candidates(env):
        answer, _ = ask(python, _ASK_MODULES % (needs.get("modules", []),), SEARCH_ASK_S, env)
        if answer and answer["version"] < least:
            old.append((python, "is Python %d.%d" % tuple(answer["version"])))
        elif answer and answer["lacks"]:
            lacking.append((python, "has no %s" % " and no ".join(answer["lacks"])))
        elif answer:
            return python, []
    return None, lacking + old


def _no_python(needs: Mapping[str, Any], tried: list[tuple[str, str]], env: Mapping[str, str]) -> tuple[str, str]:
    modules = [str(name) for name in needs.get("modules", [])]
    why = " (%s)" % needs["python_for"] if needs.get("python_for") else ""
    message = "no Python on this machine can run the search, which needs %s or later%s with %s" % (
        needs.get("python", "3.9"), why, " and ".join(modules),
    )  # fmt: skip
    if tried:
        message += "\n" + "\n".join("%s %s" % one for one in tried[:8])
    if tried and tried[0][1].startswith("has no"):
        hint = "on that machine: %s" % environment.install(tried[0][0], modules, env)
    else:
        hint = "install such a Python on the machine, and set FCCTL_PYTHON to it in `env` of the target"
    return message, hint
