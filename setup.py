"""Build description of gpu-util-callback; settings of the tools live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(
    r'^__version__ = "(.+)"$', (here / "gpu_util_callback" / "_version.py").read_text(), re.M
).group(1)

TEST = [
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-rerunfailures>=14",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "playwright>=1.48",
    "xprof>=2.20",  # the Profile tab must open our windows, too
    "import-linter>=2.5",
    "ruff>=0.8",
    "vulture>=2.14",
    "mypy>=1.13",
]

# What `make test BACKENDS=1` (CI) adds, so that no test of another framework is skipped. PyTorch is
# not listed: plain `torch` is several GB of CUDA libraries, and a requirement cannot say "only if a
# CPU build is at hand"; the Makefile can.
BACKENDS = [
    "jax>=0.10",
    "moto[s3]>=5",  # an S3 server on loopback; of its [server], which serves all of AWS,
    "flask",  # this is enough
    "flask-cors",
    "ray[train,tune]>=2.60",
    "s3fs>=2023.5",
    "tf_keras>=2.21",
]

setup(
    name="gpu-util-callback",
    version=version,
    description="Why the GPU is idle, second by second: a Keras callback and a TensorBoard tab.",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # A stray folder in a checkout must never be installed.
    packages=find_packages(include=["gpu_util_callback*", "tensorboard_plugin*"]),
    package_data={
        "gpu_util_callback": ["py.typed"],
        "tensorboard_plugin": ["py.typed", "static/*"],
    },
    install_requires=[
        "numpy>=1.26",
        "protobuf>=4.25.3",
        "nvidia-ml-py>=12.570.86",
        "psutil>=5.9",
        "fsspec>=2023.5",
        "tensorboard>=2.18",
        "werkzeug>=2.2",
    ],
    extras_require={
        "tensorflow": ["tensorflow>=2.18", "keras>=3.6"],
        "tensorflow-gpu": ["tensorflow[and-cuda]>=2.18", "keras>=3.6"],
        "keras": ["keras>=3.6"],
        "test": TEST,
        "backends": BACKENDS,
    },
    entry_points={
        "console_scripts": ["gpu-util = gpu_util_callback.cli:main"],
        "tensorboard_plugins": ["gpu_utilization = tensorboard_plugin.loader:Loader"],
    },
    classifiers=[
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
