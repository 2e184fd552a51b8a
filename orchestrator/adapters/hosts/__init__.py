"""Machines as the workflows see them: a connector, and sessions with the host program over SSH or right here."""

from orchestrator.adapters.hosts.connector import Connector
from orchestrator.adapters.hosts.interactive import attach_argv

__all__ = ["Connector", "attach_argv"]
