#!/usr/bin/env bash
# tools/setup.sh [demo]: everything that the make targets need, or `make demo` alone, which needs no torch; nothing that
# is there already. Safe to run again: a second run takes well under a second. Installs system packages through apt or
# brew only when a program is missing.
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

# macOS has g++ and git that do nothing but offer the Command Line Tools, until these are installed.
works() {
  case "$(uname):$1" in Darwin:g++ | Darwin:git) xcode-select -p >/dev/null 2>&1 || return 1 ;; esac
  has "$1"
}

# program:apt package:brew formula ("-" where macOS ships it)
programs="sshd:openssh-server:- ssh:openssh-client:- tmux:tmux:tmux rsync:rsync:rsync g++:g++:- git:git:-"

install_system() {
  local names="" apt="" brew="" entry program rest
  for entry in $programs; do
    program=${entry%%:*} rest=${entry#*:}
    works "$program" && continue
    names="$names $program" apt="$apt ${rest%%:*}"
    [ "${rest#*:}" = - ] || brew="$brew ${rest#*:}"
  done
  [ -n "$names" ] || return 0
  # shellcheck disable=SC2086 # names of packages have no spaces
  if has apt-get; then
    say "installing$apt (apt)"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $apt >/dev/null
  elif [ "$(uname)" = Darwin ] && ! works g++; then
    die "there is no C++ compiler" "xcode-select --install, then the same command again"
  elif has brew && [ -n "$brew" ]; then
    say "installing$brew (brew)"
    brew install --quiet $brew
  else
    die "missing:$names" "install them with this machine's package manager, then run the same command again"
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
  installed "$stamp" "$want" && return
  if [ "$1" = demo ] && installed "$stamp-demo" "$want"; then return; fi
  local python
  python=$(find_python)
  [ -x .venv/bin/python ] || { say "making .venv with $python" && "$python" -m venv .venv; }
  if [ "$1" = demo ]; then
    say "installing fcctl"
    .venv/bin/python -m pip install -q --disable-pip-version-check -e .
    stamp=$stamp-demo
  else
    install_torch
    say "installing fcctl and its development tools"
    .venv/bin/python -m pip install -q --disable-pip-version-check -e '.[dev,kernels]'
  fi
  printf '%s\n' "$want" >"$stamp"
  say "fcctl is .venv/bin/fcctl; to type fcctl alone: export PATH=\"$PWD/.venv/bin:\$PATH\""
}

installed() { [ -e "$1" ] && [ "$(cat "$1")" = "$2" ] && [ -x .venv/bin/fcctl ]; }

# First and by version: left to the resolver it would be the newest build, with gigabytes of CUDA libraries.
install_torch() {
  set -- 'torch==2.13.0'
  [ -z "${TORCH_INDEX:-}" ] || set -- --index-url "$TORCH_INDEX" "$@"
  if ! .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
    say "installing torch"
    .venv/bin/python -m pip install -q --disable-pip-version-check "$@"
  fi
}

install_system
install_python "${1:-all}"
