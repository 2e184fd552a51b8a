"""Preflight: what this machine is, what is wrong with it for CUDA work, and the environment steps should run in.

Everything asked of another program is bounded in time: a hanging nvidia-smi is a finding, not a hang.
"""

from fcctl_remote.probe.command import exit_code, main
from fcctl_remote.probe.document import collect
from fcctl_remote.probe.environment import resolve_environment
from fcctl_remote.probe.needs import check_needs
from fcctl_remote.probe.render import render

__all__ = ["check_needs", "collect", "exit_code", "main", "render", "resolve_environment"]
