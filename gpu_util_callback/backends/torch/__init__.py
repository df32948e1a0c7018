"""PyTorch: batches come from a loader, which is timed from outside."""
