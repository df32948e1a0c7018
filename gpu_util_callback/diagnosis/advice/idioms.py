"""The frameworks' own words: how each of them writes what advice asks for.

Advice says what to do and takes the line from here; whoever adds a framework fills in one of these.
"""

from dataclasses import dataclass

from gpu_util_callback.diagnosis.evidence.run import Run

__all__ = ["Idioms", "idioms"]


@dataclass(frozen=True, slots=True)
class Idioms:
    """What a framework calls things, in code; "" = it has no such line, or none is known.

    Attributes:
        decorator, mind: compile the function of a step, and what to mind then.
        compiled: compile the step of a loop so that kernels are fused.
        read, reads: read a loss, and the calls that read results.
        to_uint8, from_uint8: send a batch as bytes, and convert it on the GPU.
        half: compute in 16 bits, `{kind}` being the type; scaler: what scales the loss then.
        memory_limit: allow the process all of the memory.
        leaves_memory: the environment of a training that leaves memory to others.
        on_gpu: put the model on the GPU.
        every_gpu: spread a Keras training over all GPUs.
    """

    decorator: str = ""
    mind: str = ""
    compiled: str = ""
    read: str = "float(loss)"
    reads: str = "float()"
    to_uint8: str = ""
    from_uint8: str = ""
    half: str = ""
    scaler: str = "; scale the loss, or small gradients get lost"
    memory_limit: str = ""
    leaves_memory: str = ""
    on_gpu: str = ""
    every_gpu: str = ""


_OF = {
    "tensorflow": Idioms(
        decorator="@tf.function",
        mind="What else Python does in it (print, lists, NumPy) then happens only while it is "
        "traced.",
        compiled="train_step = tf.function(train_step, jit_compile=True)",
        reads="float(), .numpy()",
        to_uint8="x = tf.cast(x, tf.uint8)",
        from_uint8="x = tf.cast(x, tf.float32) / 255",
        memory_limit='for gpu in tf.config.list_physical_devices("GPU"):\n'
        "    tf.config.experimental.set_memory_growth(gpu, True)  # instead of memory_limit=",
        leaves_memory="TF_FORCE_GPU_ALLOW_GROWTH=true",
        on_gpu='with tf.device("/GPU:0"): ...  # around building the model, not "/CPU:0"',
        every_gpu="with tf.distribute.MirroredStrategy().scope():\n"
        "    model = build_model()  # and compile it here",
    ),
    "jax": Idioms(
        decorator="@jax.jit",
        mind="It must return all that it changes: parameters and the optimizer's state.",
        compiled="train_step = jax.jit(train_step)",
        reads="float(), block_until_ready()",
        to_uint8='x = x.astype("uint8")',
        from_uint8="x = jax.device_put(x).astype(jnp.float32) / 255",
        half="params = jax.tree.map(lambda leaf: leaf.astype(jnp.{kind}), params)"
        "  # inside the loss function\n"
        "x = x.astype(jnp.{kind})  # else JAX computes in float32",
        memory_limit='os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its old name\n'
        'os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.9"  # before jax is imported',
        leaves_memory="XLA_PYTHON_CLIENT_PREALLOCATE=false",
        on_gpu='jax.config.update("jax_default_device", jax.devices("gpu")[0])\n'
        'params = jax.device_put(params, jax.devices("gpu")[0])',
        every_gpu="keras.distribution.set_distribution(keras.distribution.DataParallel())"
        "  # before the model is built",
    ),
    "torch": Idioms(
        compiled='model = torch.compile(model, mode="reduce-overhead")',
        read="loss.item()",
        reads=".item(), .cpu()",
        to_uint8="x = x.to(torch.uint8)",
        from_uint8="x = x.to(device, non_blocking=True).float() / 255",
        half='with torch.autocast("cuda", dtype=torch.{kind}):\n'
        "    loss = loss_function(model(x), y)",
        scaler="; scale the loss with torch.amp.GradScaler",
        memory_limit="torch.cuda.set_per_process_memory_fraction(1.0)",
        on_gpu='model = model.to("cuda")\n'
        'batch = batch.to("cuda", non_blocking=True)  # every batch',
    ),
}
_UNKNOWN = Idioms()


def idioms(run: Run) -> Idioms:
    """Return those of a run's framework."""
    return _OF.get(run.framework, _UNKNOWN)
