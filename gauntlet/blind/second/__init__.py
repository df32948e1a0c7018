"""Twenty programs that were only measured, once."""
