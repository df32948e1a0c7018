"""Who held the memory, kept beside the post-mortem of an out-of-memory error."""

import gzip

import pytest

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import diagnose

jax = pytest.importorskip("jax")


@pytest.mark.parametrize(("wanted", "given"), [
    (True, {"memory_stacks": True}),
    (False, {}),
    (False, {"memory_stacks": True, "redact": True}),  # the stacks hold names of folders
])  # fmt: skip
def test_jax_says_whose_buffers_were_alive(wanted, given, tmp_path):
    with (
        pytest.raises(Exception, match="RESOURCE_EXHAUSTED"),
        GpuUtilMonitor(tmp_path, framework="jax", **given) as monitor,
    ):
        for _ in monitor.batches(range(20)):
            held_by_the_test = jax.numpy.ones(1 << 20)
            jax.block_until_ready(held_by_the_test)
        jax.block_until_ready(jax.numpy.ones(1 << 45))
    (recording,) = read_recordings(tmp_path)
    (finding,) = [one for one in diagnose(recording)["findings"] if one["cause"] == "out_of_memory"]
    assert finding["evidence"].get("memory_stacks") == ("memory.pb.gz" if wanted else None)
    (manifest,) = tmp_path.rglob("manifest.json")
    profile = manifest.parent / "memory.pb.gz"
    assert profile.exists() == wanted
    if wanted:
        assert b"test_jax_says_whose_buffers_were_alive" in gzip.decompress(profile.read_bytes())
