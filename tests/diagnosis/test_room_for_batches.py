"""A larger batch is advised as far as it fits into the GPU's memory, and no further."""

import pytest
from generated_runs import GPU, Generated

CAUSES = {
    "launch_bound": ("idle_launch", {"jit_compile": True}),
    "communication_bound": ("collective", {"strategy": "MirroredStrategy"}),
    "sync_bound": ("idle_sync", {"strategy": "MirroredStrategy"}),
}


def advice_of(cause: str, used: float | None, **fit) -> dict:
    """The finding of a traced run whose allocator needs the share `used` of the memory."""
    category, facts = CAUSES[cause]
    more = {"batch_size": 32, "input_kind": "tf.data", **facts, **fit}
    run = Generated(seed=1, gpus=[GPU], fit=more)
    run.steps(300, step_ms=10, gpu_share=0.5)
    run.trace(8, 10, **{category: 0.4})
    run.steps(300, step_ms=10, gpu_share=0.5)
    if used is not None:
        run.gpu_value("allocator_peak_bytes", 6, used * GPU["memory_total_bytes"])
    [finding] = run.diagnose()["findings"]
    assert finding["cause"] == cause
    return finding


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("used, size", [(None, 128), (0.1, 128), (0.3, 64)])
def test_the_batch_grows_as_far_as_it_fits(cause, used, size):
    finding = advice_of(cause, used)
    assert finding["advice"]["code"] == f"ds = ds.batch({size})"
    assert finding["saves_s"] == pytest.approx((1 - 32 / size) * finding["lost_s"], rel=0.01)
    if cause == "communication_bound":
        assert ("half as often" in finding["advice"]["text"]) == (size == 64)


@pytest.mark.parametrize("cause", CAUSES)
def test_where_none_fits_none_is_advised(cause):
    finding = advice_of(cause, 0.6)
    assert "does not fit" in finding["advice"]["text"] and finding["advice"]["code"] == ""
    assert finding["saves_s"] == 0
