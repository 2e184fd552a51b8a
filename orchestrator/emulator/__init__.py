"""An emulator of Compute Engine: the REST API on loopback, with instances that are real sshd processes."""
