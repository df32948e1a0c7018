"""Which combinations the version matrix runs, and which of the project's tests judge them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

# pytest's arguments; all of a suite's tests exist for the ordinary test run, too.
SUITES = {
    # Waits against stamped truth, accounts, endings, compilation, a cause, custom loops, profiler
    # windows, the report, the tab.
    "tensorflow": [
        *(
            f"tests/keras/test_input_wait.py::test_wait_is_the_truth[{case}]"
            for case in (
                "tf.data-plain-short",
                "tf.data + prefetch-plain-long",
                "unknown length-jit-short",
                "generator-determinism-short",
            )
        ),
        *(
            f"tests/keras/test_input_wait.py::test_waits_under_several_steps_per_execution[{case}]"
            for case in ("3-8-plain", "12-8-determinism", "3-1-determinism")
        ),
        "tests/keras/test_input_wait.py::test_determinism_with_a_train_function_of_ones_own",
        *(
            f"tests/keras/test_accounts.py::test_{name}"
            for name in (
                "every_category_is_what_was_injected",
                "waiting_for_the_device_is_not_a_callback",
                "a_new_shape_under_xla_is_a_compilation",
                "a_retrace_is_a_compilation",
            )
        ),
        *(
            f"tests/keras/test_fit_ways.py::test_{name}"
            for name in (
                "another_fit_reuses_the_trace_also_after_one_without_us",
                "the_end_of_data_is_no_step",
                "facts_and_a_validation_in_every_epoch",
                "a_stale_wrapper_ends_with_the_next_fit",
            )
        ),
        "tests/keras/test_thirds.py::test_the_slow_part_is_one_span_with_its_stage",
        "tests/backends/test_loops.py",
        *(
            f"tests/profiling/test_tensorflow_windows.py::test_{name}"
            for name in (
                "a_window_is_in_the_recording_and_in_the_profile_tab",
                "tensorboard_in_the_same_folder_and_before_us",
            )
        ),
        "tests/diagnosis/test_report.py",
        "tests/plugin/test_server.py::test_the_tab_and_every_route[fast]",
        "-k",
        "not jax and not torch",
    ],
    # What depends on the other libraries: NVML's binding, protobuf, TensorBoard, fsspec, …
    "libraries": [
        "tests/keras/test_input_wait.py::test_wait_is_the_truth[tf.data-plain-short]",
        "tests/keras/test_pipeline_stages.py",
        "tests/keras/test_relied_on.py",
        "tests/keras/test_log_dirs.py",
        "tests/profiling",
        "tests/recording",
        "tests/diagnosis",
        "tests/traces",
        "tests/plugin",
        "tests/gpus",
        "-k",
        "not jax and not torch",
    ],
    "jax": [
        "tests/backends/test_keras_backends.py",
        "tests/backends/test_loops.py",
        "tests/backends/test_device_facts.py",
        "tests/profiling/test_jax_windows.py",
        "-k",
        "not torch and not tensorflow",
    ],
    "torch": [
        "tests/backends/test_keras_backends.py",
        "tests/backends/test_loops.py",
        "tests/backends/test_device_facts.py",
        "-k",
        "not jax and not tensorflow and not synchronization and not hidden_by",
    ],
    # The guides' programs for Hugging Face's and Lightning's trainers.
    "trainers": ["tests/docs/test_site.py", "-k", "recipes_run and loops"],
}
TRAINERS = "Hugging Face and Lightning"
NIGHTLY = "nightly builds"
LIBRARIES = ("numpy", "protobuf", "tensorboard", "nvidia-ml-py", "psutil", "fsspec", "werkzeug")


@dataclass(frozen=True)
class Row:
    """One combination.

    Args:
        python: e.g. "3.11".
        backend: "tensorflow", "jax" or "torch".
        backend_version: e.g. "2.18", its newest patch is taken; "2.18.0"; "" = the newest.
        keras: the same for Keras.
        suite: one of `SUITES`.
        note: what else is special.
        oldest: every library at the lower bound that we declare.
    """

    python: str
    backend: str
    backend_version: str
    keras: str
    suite: str
    note: str = ""
    oldest: bool = False

    @property
    def base(self) -> str:
        """What an environment is made of, apart from Keras."""
        name = f"{self.backend}-{self.backend_version or 'newest'}"
        return f"{name}, {self.note}" if self.note else name

    @property
    def title(self) -> str:
        return f"{self.python} {self.base} keras-{self.keras or 'newest'}"

    @property
    def slug(self) -> str:
        return self.title.replace(", ", "-").replace(" ", "-")

    @property
    def swapped(self) -> bool:
        """Whether Keras is replaced in the environment that pip resolved."""
        return not self.note

    @property
    def shown(self) -> tuple[str, ...]:
        """The distributions whose versions the table names, apart from the backend and Keras."""
        return LIBRARIES if self.note else ()

    def requirements(self) -> list[str]:
        """For pip, together with our package."""
        version = self.backend_version
        if self.note == NIGHTLY:
            return ["--pre", "tf-nightly", "keras-nightly"]
        wanted = [self.backend + (f"=={version}" + ("" if version.count(".") > 1 else ".*"))]
        if not version:
            wanted = [self.backend]
        if self.note and self.keras:
            wanted.append(f"keras=={self.keras}")
        elif self.note or self.backend != "tensorflow":
            wanted.append("keras")
        if self.note == TRAINERS:
            wanted += ["transformers", "accelerate", "lightning"]
        if version.startswith(("2.18", "2.19", "2.20")):
            # Their TensorBoard imports pkg_resources, which newer setuptools lack.
            wanted.append("setuptools<82")
        return wanted

    def chosen(self, texts: list[str]) -> bool:
        """Whether all words of one of `texts` are in the title; no text chooses all."""
        words = self.title.replace(",", "").split()
        return not texts or any(set(text.split()) <= set(words) for text in texts)


def _tensorflow(python: str, version: str, *keras: str) -> list[Row]:
    return [Row(python, "tensorflow", version, one, "tensorflow") for one in keras]


ROWS = [
    # Every Keras, under the oldest TensorFlow.
    *_tensorflow("3.11", "2.18", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", ""),
    # Every TensorFlow, with the oldest Keras it permits and with the newest.
    *_tensorflow("3.11", "2.19", "3.6", ""),
    *_tensorflow("3.11", "2.20", "3.10", ""),
    *_tensorflow("3.11", "", "3.12", ""),
    *_tensorflow("3.12", "2.18", "3.6", ""),
    *_tensorflow("3.12", "", ""),
    *_tensorflow("3.13", "2.20", "3.10", ""),
    *_tensorflow("3.13", "", "3.12", ""),
    Row("3.11", "tensorflow", "2.18.0", "3.6.0", "libraries", "oldest of everything", oldest=True),
    Row("3.13", "tensorflow", "", "", "libraries", "newest of everything"),
    # The newest Python: TensorFlow has wheels for it from a release candidate of 2.22 on, which pip
    # takes while there is nothing else.
    Row("3.14", "tensorflow", "", "", "tensorflow"),
    Row("3.12", "tensorflow", "nightly", "", "tensorflow", NIGHTLY),
    # Keras without TensorFlow.
    *(Row(python, "jax", "", "", "jax") for python in ("3.11", "3.12", "3.13", "3.14")),
    Row("3.11", "torch", "2.13.0+cpu", "", "torch"),
    Row("3.11", "torch", "2.13.0+cpu", "", "trainers", TRAINERS),
    Row("3.12", "torch", "", "", "torch"),  # the newest; on Linux with several GB of CUDA's libraries
]


def groups(rows: list[Row]) -> list[list[Row]]:
    """Neighbours that can share an environment."""
    return [list(group) for _, group in groupby(rows, lambda row: (row.python, row.base))]
