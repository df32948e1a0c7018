"""TensorFlow: batches are pulled inside the compiled function, and timed there."""
