"""Connections to machines: the host program's agent over SSH or on this computer, and files to and from it."""
