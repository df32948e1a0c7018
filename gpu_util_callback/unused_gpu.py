"""Reasons why a framework uses no GPU, as the recording, the log and the report word them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# How to install a build with CUDA in the training's environment.
INSTALL = {
    "tensorflow": 'pip install "tensorflow[and-cuda]"',
    "jax": 'pip install "jax[cuda12]"',
    "torch": "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
}
_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


# reason, cure (in words) and code (the line to fix it) of why a framework uses no GPU
Unused = Mapping[str, str]

# Of a worker to which Ray gave none of the GPUs.
NOT_GIVEN: Unused = {
    "reason": "Ray gave this worker no GPU",
    "cure": "ask Ray for one: num_gpus=1",
    "code": "num_gpus=1",
}


def called(framework: str) -> str:
    """Return a framework's name for display: "TensorFlow"; "the framework" if unknown."""
    return _NAMES.get(framework, "the framework")


def why_unused(
    framework: str, gpus: int, visible: int, cuda_build: bool | None, environ: Mapping[str, str] | None = None
) -> Unused:
    """Return why `framework` uses none of the `gpus` GPUs that the driver reports: reason, cure and code.

    Args:
        framework: "tensorflow", "jax", "torch", or "" = not known.
        gpus: how many the driver reports.
        visible: how many of them CUDA_VISIBLE_DEVICES leaves.
        cuda_build: whether the framework was built with CUDA, None = not known.
        environ: the training's environment variables, as far as they are known.
    """
    environ = environ or {}
    who = called(framework)
    count = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    gpus_present = f"there {'are' if gpus > 1 else 'is'} {count}"
    if visible == 0:
        value = environ.get("CUDA_VISIBLE_DEVICES", "")
        return {
            "reason": f"CUDA_VISIBLE_DEVICES={value} hides {'all ' if gpus > 1 else 'the '}{count}",
            "cure": "unset CUDA_VISIBLE_DEVICES, or name a GPU in it",
            "code": "unset CUDA_VISIBLE_DEVICES",
        }
    platforms = environ.get("JAX_PLATFORMS") or environ.get("JAX_PLATFORM_NAME") or ""
    if framework == "jax" and platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        them = "them" if gpus > 1 else "it"
        return {
            "reason": f"{gpus_present}, and JAX_PLATFORMS={platforms} keeps JAX from using {them}",
            "cure": "unset JAX_PLATFORMS",
            "code": "unset JAX_PLATFORMS JAX_PLATFORM_NAME",
        }
    if cuda_build is False:
        code = INSTALL.get(framework, "")
        if framework == "tensorflow":
            code = f"pip uninstall -y tensorflow tensorflow-cpu; {code}"
        cure = "install the build that has it" + (f": {code}" if code else "")
        return {"reason": f"{gpus_present}, and {who} was built without CUDA", "cure": cure, "code": code}
    return {
        "reason": f"{gpus_present}, and {who} sees none",
        "cure": "run `gpu-util doctor`: it says which library is missing or does not fit",
        "code": "gpu-util doctor",
    }


def checked(
    framework: str,
    framework_gpus: Sequence[Mapping[str, object]] | None,
    driver_gpus: Sequence[Mapping[str, object]],
    cuda_build: bool | None,
    environ: Mapping[str, str],
) -> list[Unused]:
    """Return why a training uses none of the GPUs, for the manifest; [] if it uses any, or there is none.

    Args:
        framework_gpus: the framework's; None or empty = it has none.
        driver_gpus: all that the driver sees, with "visible".
    """
    if framework_gpus or not driver_gpus:
        return []
    visible = sum(bool(gpu.get("visible", True)) for gpu in driver_gpus)
    return [why_unused(framework, len(driver_gpus), visible, cuda_build, environ)]
