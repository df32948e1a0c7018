"""A run as the rules see it: bounded sums of its tables and samples, and questions about them."""
