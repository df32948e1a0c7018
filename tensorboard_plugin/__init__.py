"""The "GPU Utilization" tab of TensorBoard."""
