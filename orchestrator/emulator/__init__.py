"""A Compute Engine of one's own: the REST API on loopback, with instances that are real sshd processes."""

from orchestrator.emulator.clock import EmulatedClock
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.faults import FaultSyntax
from orchestrator.emulator.scenario import REALISTIC, Latency, Scenario, load

__all__ = ["REALISTIC", "EmulatedClock", "Emulator", "FaultSyntax", "Latency", "Scenario", "load"]
