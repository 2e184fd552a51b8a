"""A Compute Engine of one's own: the REST API on loopback, with instances that are real sshd processes."""
