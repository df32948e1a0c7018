"""Evidence for the rules: bounded sums of a run's tables and samples, and queries on them."""
