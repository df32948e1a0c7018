"""What TensorFlow and Keras say of the framework, the model, the fit and the GPUs."""

from __future__ import annotations

import platform
import sys
from typing import Any

import keras
import tensorflow as tf

from gpu_util_callback.frameworks.keras_fit import is_tf_keras
from gpu_util_callback.frameworks.tensorflow_distribute import replicas

__all__ = ["devices", "facts"]


def facts(model: Any, timing: str) -> dict[str, Any]:
    """Facts for the manifest: `framework`, `model` and what of `fit` the model knows."""
    optimizer = getattr(model, "optimizer", None)
    policy = getattr(model, "dtype_policy", None)
    strategy = getattr(model, "_distribute_strategy", None)
    return {
        "framework": {
            "name": "tensorflow",
            "version": tf.__version__,
            "keras": _keras_of(model),
            "backend": "tensorflow",
            "python": platform.python_version(),
            "cuda_build": bool(tf.test.is_built_with_cuda()),
            "cuda": _build("cuda_version"),
            "cudnn": _build("cudnn_version"),
        },
        "model": {
            "name": getattr(model, "name", None),
            "parameters": int(model.count_params()) if getattr(model, "built", False) else None,
            "trainable_variables": len(model.trainable_variables) if model.built else None,
        },
        "fit": {
            "steps_per_execution": int(getattr(model, "steps_per_execution", 1) or 1),
            "jit_compile": bool(getattr(model, "jit_compile", False)),
            "run_eagerly": bool(getattr(model, "run_eagerly", False)),
            "timing": timing,
            "mixed_precision": getattr(policy, "name", None),
            "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
            "optimizer": type(optimizer).__name__ if optimizer is not None else None,
            "strategy": type(strategy).__name__ if strategy is not None else None,
            "replicas": replicas(model),
            "op_determinism": timing.startswith("python"),
        },
    }


def _keras_of(model: Any) -> str:
    """The version of the Keras that a model belongs to: Keras 3, or `tf_keras`."""
    if is_tf_keras(model):
        return f"tf_keras {sys.modules['tf_keras'].__version__}"
    return keras.__version__


def _build(key: str) -> str | None:
    try:
        return tf.sysconfig.get_build_info().get(key)
    except Exception:
        return None


def devices() -> list[dict[str, Any]] | None:
    """The GPUs that TensorFlow may use, in its own order; None where it has none.

    `cuda_ordinal` is CUDA's number, which `tf.config.set_visible_devices` does not change.
    """
    found = []
    for index, device in enumerate(tf.config.get_visible_devices("GPU")):
        try:
            details = tf.config.experimental.get_device_details(device)
        except Exception:  # a plug-in device without details
            details = {}
        capability = details.get("compute_capability")
        ordinal = device.name.rpartition(":")[2]  # "/physical_device:GPU:1"
        found.append(
            {
                "index": index,
                "name": details.get("device_name") or device.name,
                "compute_capability": ".".join(map(str, capability)) if capability else None,
                "cuda_ordinal": int(ordinal) if ordinal.isdigit() else None,
            }
        )
    return found or None
