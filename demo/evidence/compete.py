"""Computes on the GPU until its input is closed: `python compete.py jax|torch|tensorflow`.

Nobody's child: what a training's own children do on the GPU counts as the training's.
"""

import os
import sys
import threading


def multiply(backend: str) -> None:
    size = 4096
    if backend == "torch":
        import torch

        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

        def work():
            for _ in range(50):
                b = a @ a
            torch.cuda.synchronize()
            return b

    elif backend == "jax":
        import jax
        import jax.numpy as jnp

        a = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
        product = jax.jit(lambda m: m @ m)

        def work():
            for _ in range(50):
                b = product(a)
            return b.block_until_ready()

    else:
        import tensorflow as tf

        with tf.device("GPU:0"):
            a = tf.random.normal((size, size), dtype=tf.bfloat16)

        def work():
            for _ in range(50):
                b = tf.linalg.matmul(a, a)
            return b[0, 0].numpy()

    work()
    print("computing", flush=True)
    # Its parent closes the pipe when it ends, however that happens.
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.is_set():
        work()


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    multiply(sys.argv[1])
