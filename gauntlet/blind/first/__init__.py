"""Twenty programs that look for faults."""
