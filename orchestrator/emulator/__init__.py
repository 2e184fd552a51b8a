"""A Compute Engine of one's own: the REST API on loopback, with instances that are real sshd processes."""

from orchestrator.emulator.core.clock import EmulatedClock
from orchestrator.emulator.core.faults import FaultSyntax
from orchestrator.emulator.core.scenario import REALISTIC, Latency, Scenario, load
from orchestrator.emulator.emulator import Emulator

__all__ = ["REALISTIC", "EmulatedClock", "Emulator", "FaultSyntax", "Latency", "Scenario", "load"]
