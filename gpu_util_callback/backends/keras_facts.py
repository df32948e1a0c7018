"""Facts of a Keras model, on any backend."""

from __future__ import annotations

import sys
from typing import Any

from gpu_util_callback.steps.fit_frame import is_tf_keras

__all__ = ["keras_facts"]


def keras_facts(model: Any, framework: dict[str, Any], timing: str, **fit: Any) -> dict[str, Any]:
    """Return `framework`, `model` and the model's part of `fit` for the manifest.

    Args:
        model: the model being trained.
        framework: the framework's facts.
        timing: how batches are timed.
        fit: the framework's facts of the fit.
    """
    optimizer = getattr(model, "optimizer", None)
    policy = getattr(model, "dtype_policy", None)
    built = bool(getattr(model, "built", False))
    return {
        "framework": {**framework, "keras": _keras_of(model)},
        "model": {
            "name": getattr(model, "name", None),
            "parameters": int(model.count_params()) if built else None,
            "trainable_variables": len(model.trainable_variables) if built else None,
        },
        "fit": {
            "steps_per_execution": int(getattr(model, "steps_per_execution", 1) or 1),
            "jit_compile": bool(getattr(model, "jit_compile", False)),
            "run_eagerly": bool(getattr(model, "run_eagerly", False)),
            "timing": timing,
            "mixed_precision": getattr(policy, "name", None),
            "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
            "optimizer": type(optimizer).__name__ if optimizer is not None else None,
            **fit,
        },
    }


def _keras_of(model: Any) -> str:
    """Return the version of the Keras that a model belongs to: Keras 3, or `tf_keras`."""
    if is_tf_keras(model):
        return f"tf_keras {sys.modules['tf_keras'].__version__}"
    return sys.modules["keras"].__version__
