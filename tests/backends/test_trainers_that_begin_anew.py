"""Trainers that begin a training again within one call, as Hugging Face's does for `auto_find_batch_size`."""

from gpu_util_callback import read_recordings
from gpu_util_callback.trainers import _HuggingFace


def test_a_training_that_begins_anew_was_interrupted_before(tmp_path):
    hooks = _HuggingFace()
    hooks._library, hooks._settings = "transformers", {"log_dir": str(tmp_path)}
    for _ in range(3):  # no on_train_end: an error of memory ended each but the last
        hooks.on_train_begin(None)
        hooks.on_epoch_begin()
        for _ in range(2):
            hooks.on_step_begin()
            hooks._end_step()
    hooks.on_train_end()
    assert [one.status for one in read_recordings(str(tmp_path))] == ["interrupted", "interrupted", "ended"]
