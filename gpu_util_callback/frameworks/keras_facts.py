"""What a Keras 3 model says of itself, on any backend."""

from __future__ import annotations

from typing import Any

__all__ = ["fit_facts", "model_facts"]


def model_facts(model: Any) -> dict[str, Any]:
    """The manifest's `model`."""
    built = bool(getattr(model, "built", False))
    return {
        "name": getattr(model, "name", None),
        "parameters": int(model.count_params()) if built else None,
        "trainable_variables": len(model.trainable_variables) if built else None,
    }


def fit_facts(model: Any, timing: str) -> dict[str, Any]:
    """What of the manifest's `fit` the model knows."""
    optimizer = getattr(model, "optimizer", None)
    policy = getattr(model, "dtype_policy", None)
    return {
        "steps_per_execution": int(getattr(model, "steps_per_execution", 1) or 1),
        "jit_compile": bool(getattr(model, "jit_compile", False)),
        "run_eagerly": bool(getattr(model, "run_eagerly", False)),
        "timing": timing,
        "mixed_precision": getattr(policy, "name", None),
        "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
    }
