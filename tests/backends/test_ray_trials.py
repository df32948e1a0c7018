"""Ray Tune's trials record under their own names, in one log directory."""

from __future__ import annotations

from processes import need, results, start


def test_each_trial_has_its_own_recording(tmp_path):
    need("ray")
    one = results(start("ray_program.py", str(tmp_path / "logs"), RAY_AIR_NEW_OUTPUT="0"))["trials"]
    assert one["recorded"] == one["names"]
    assert len(set(one["names"])) == 2
    assert one["sessions"] == 2, "trials are no workers of one job"
    assert one["steps"] == [30, 30]
    assert one["status"] == ["ended", "ended"]
