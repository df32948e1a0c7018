"""Memory that is filled on purpose: to the named share, and with room left for a step."""

import pytest

pytest.importorskip("keras")
from evidence.child import play_or_require_gpu
from evidence.device import Device
from evidence.job import Job, NoGpu

GIB = 1 << 30


class Pool(Device):
    """A device whose allocator is counted here.

    Args:
        passing: bytes that a step took and gave back before.
    """

    def __init__(self, limit, held, passing):
        self.backend, self.limit = "pool", limit
        self.used, self.peak = held, held + passing

    def _limit(self):
        return self.limit

    def _used(self, peak=False):
        return self.peak if peak else self.used

    def _allocate(self, size):
        if self.used + size > self.limit:
            raise MemoryError("RESOURCE_EXHAUSTED")
        self.used += size
        self.peak = max(self.peak, self.used)
        return Block(self, size)


class Block:
    def __init__(self, pool, size):
        self.pool, self.size = pool, size

    def __del__(self):
        self.pool.used -= self.size


@pytest.mark.parametrize("gib", [8, 24, 80, 140])
@pytest.mark.parametrize("passing_gib", [0, 0.3, 2.4])
def test_the_allocator_is_filled_and_a_step_still_fits(gib, passing_gib):
    passing = int(passing_gib * GIB)
    pool = Pool(gib * GIB, GIB, passing)
    kept = pool.fill_allocator(0.98)
    assert pool.peak >= 0.98 * pool.limit - 0.3 * GIB
    step = pool._allocate(passing)
    assert pool.used <= pool.limit
    del step
    assert len(kept) < gib + 4


def test_a_model_that_fills_it_by_itself_is_left_alone():
    pool = Pool(8 * GIB, int(7.9 * GIB), 0)
    assert pool.fill_allocator(0.98) == []


def test_without_a_gpu_nothing_is_trained():
    device = Device()
    if device.is_gpu:
        pytest.skip("there is one here")
    with pytest.raises(NoGpu, match="tensorflow sees no GPU here"):
        play_or_require_gpu(Job("healthy", "tensorflow", "", ""), device)
