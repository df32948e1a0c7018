"""The TensorBoard plugin: reads recordings and serves them to the GPU Utilization tab."""
