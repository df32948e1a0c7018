"""Skips what needs a package that is absent, and says which command brings it."""

import importlib.util

import pytest

# What `make test` itself installs is not listed: its test extra does.
BY_BACKENDS = {
    "jax": "jax",
    "torch": "torch==2.13.0+cpu",  # the Makefile's; plain `torch` brings CUDA's gigabytes
    "ray": "'ray[train,tune]'",
    "tf_keras": "tf_keras",
    "moto": "'moto[s3]' flask flask-cors",
    "s3fs": "s3fs",
}
BY_EXTRA = {"tensorflow": "tensorflow", "keras": "tensorflow", "xprof": "test", "playwright": "test"}


def need(*packages: str) -> None:
    """Skip the test where one of `packages` cannot be imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            command = f"pip install -e '.[{BY_EXTRA.get(package, 'test')}]'"
            if package in BY_BACKENDS:
                command = f"BACKENDS=1 make test, or pip install {BY_BACKENDS[package]}"
            pytest.skip(f"{package} is not installed: {command}")
