"""The TensorBoard plugin: it reads recordings and serves them to the GPU Utilization tab."""
