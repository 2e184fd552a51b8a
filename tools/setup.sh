#!/usr/bin/env bash
# Everything `make demo` and `make test` need, and nothing that is there already. Safe to run again: a second run takes
# well under a second. Installs system packages through apt or brew only when a program is missing.
# For bash 3.2, which is all a Mac has: there "${array[@]}" of an empty array ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/usr/local/sbin/$1" ]; }

# program:apt package:brew formula ("-" where macOS ships it)
programs="sshd:openssh-server:- ssh:openssh-client:- tmux:tmux:tmux rsync:rsync:rsync g++:g++:- git:git:-"

install_system() {
  local apt=() brew=() names=() entry program rest
  for entry in $programs; do
    program=${entry%%:*} rest=${entry#*:}
    has "$program" && continue
    names+=("$program") apt+=("${rest%%:*}")
    [ "${rest#*:}" = - ] || brew+=("${rest#*:}")
  done
  [ ${#names[@]} -eq 0 ] && return
  if has apt-get; then
    say "installing ${apt[*]} (apt)"
    as_root apt-get update -qq
    # shellcheck disable=SC2086 # names of packages have no spaces
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${apt[*]} >/dev/null
  elif has brew && [ ${#brew[@]} -gt 0 ]; then
    say "installing ${brew[*]} (brew)"
    # shellcheck disable=SC2086
    brew install --quiet ${brew[*]}
  elif [ "$(uname)" = Darwin ] && ! has g++; then
    die "there is no C++ compiler" "xcode-select --install"
  else
    die "missing: ${names[*]}" "install them with this machine's package manager, then run make setup again"
  fi
}

find_python() {
  local candidate
  for candidate in python3.13 python3.12 python3.11 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 or newer (with venv) is needed" "apt install python3 python3-venv, or brew install python@3.12"
}

install_python() {
  local stamp=.venv/.installed want
  want=$(cat pyproject.toml tools/setup.sh | cksum)
  [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x .venv/bin/fcctl ] && return
  local python
  python=$(find_python)
  [ -x .venv/bin/python ] || { say "making .venv with $python" && "$python" -m venv .venv; }
  # torch first and by version: left to the resolver it would be the newest build, with gigabytes of CUDA libraries.
  set -- 'torch==2.13.0'
  [ -z "${TORCH_INDEX:-}" ] || set -- --index-url "$TORCH_INDEX" "$@"
  if ! .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
    say "installing torch"
    .venv/bin/python -m pip install -q --disable-pip-version-check "$@"
  fi
  say "installing fcctl and its development tools"
  .venv/bin/python -m pip install -q --disable-pip-version-check -e '.[dev,kernels]'
  printf '%s\n' "$want" >"$stamp"
  say "fcctl is .venv/bin/fcctl; to type fcctl alone: export PATH=\"$PWD/.venv/bin:\$PATH\""
}

install_system
install_python
