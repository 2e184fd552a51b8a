"""Machines as the workflows see them: a connector, and sessions with the host program over SSH or right here."""

from orchestrator.machines.connect.connector import Connector

__all__ = ["Connector"]
