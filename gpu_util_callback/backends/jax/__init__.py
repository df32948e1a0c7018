"""JAX: batches are fetched in Python, steps are dispatched and computed later."""
