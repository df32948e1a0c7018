"""A job of several workers in the tab: who holds the others back, wrong clocks, one that died."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.recording.event_files import ScalarWriter

MS = 1_000_000
STEPS = {0: 300, 1: 300, 2: 231}
OFFSETS_MS = {0: 0.0, 1: -2000.0, 2: 35.0}


def kill(manifest, now_ns):
    """As `kill -9` leaves it: "live", and not heard of since."""
    facts = json.loads(manifest.read_text())
    assert facts["status"] == "live"
    manifest.write_text(json.dumps(facts | {"heartbeat_wall_ns": now_ns, "heartbeat_ns": now_ns}))
    os.utime(manifest, ns=(now_ns, now_ns))


# Shares of the width at which a broken line runs down the lanes.
MARKS = """(() => {
    const canvas = document.querySelector('.tl-surface canvas');
    const { width, height } = canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
    const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue('--text').trim()
        .match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
    const found = [];
    for (let x = 0; x < width; x++) {
        let count = 0;
        for (let y = 0; y < height; y++) {
            const at = 4 * (y * width + x);
            const off = [r, g, b].map((part, i) => Math.abs(data[at + i] - part));
            count += off[0] + off[1] + off[2] < 40;
        }
        if (count > 30) found.push(x / width);
    }
    return found;
})()"""


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """Three workers in step; the second one's clock is off, the third is slow and was killed."""
    root = tmp_path_factory.mktemp("workers")
    lengths = np.random.default_rng(3).normal(60, 8, 300)
    for rank, steps in STEPS.items():
        run = Generated(seed=1, rank=rank, world_size=3, job="pod", host=f"node-{rank}")
        run.now += round(OFFSETS_MS[rank] * MS)
        run.facts["started_ns"] = run.now
        noise = np.diff(np.random.default_rng(rank).normal(0, 0.1, 301))
        wait = np.where(rank == 2, lengths * 0.7, 0.0)
        run.steps(steps, step_ms=(lengths + noise - wait)[:steps], wait_ms=wait[:steps])
        path = write(run, root / "pod", "live" if rank == 2 else "ended")
        if rank == 2:
            kill(Path(path) / "manifest.json", run.now)
    marker = ScalarWriter(str(root / "pod"))
    marker.marker()
    marker.close()
    return root


def test_the_workers_of_a_job(pod, open_tab, start_tensorboard):
    server = start_tensorboard(pod)
    tab = open_tab(server.url)
    tab.panel()
    tab.wait_for("text=Across 3 workers")
    assert tab.find(".finding:has-text('Worker 2 holds the others back')").count() == 1
    assert tab.text("h1").startswith("Worker 2 holds the others back")
    lost = tab.find(".window-button:has-text('rank 2')")
    assert "killed after 231 steps" in " ".join(lost.inner_text().split())
    assert "2 of 3 worker clocks aligned, by up to 2 s" in tab.text("details.clock summary")
    tab.find("details.clock summary").click()
    said = [" ".join(text.split()) for text in tab.find(".clock p").all_inner_texts()]
    assert len(said) == 2
    assert said[0].startswith("Clock of worker 1: 2,000 ms behind worker 0's")
    assert said[1].startswith("Clock of worker 2: 35.")
    tab.wait_for(".topbar .status-lost")
    # A thin row a worker: the late one's wait for its input, the others' for the late one.
    late = tab.find(".tl-rank:has-text('holds the others back')").bounding_box()
    head = tab.head()
    y = late["y"] + late["height"] / 2 - head["y"]
    tab.page.mouse.move(head["x"] + 200, head["y"] + y)
    tab.wait_for(".tooltip:has-text('holds the others back')")
    tab.page.mouse.move(head["x"] + 200, head["y"] + y + 14)
    tab.wait_for(".tooltip:has-text('waiting for worker 2')")
    wait, work = (tab.colour_at(".tl-head canvas", 200, y + by) for by in (-4, 4))
    assert wait[0] > work[0] + 100, "its wait over its work"
    tab.button("compare all").click()
    tab.settle()
    # One lane for all of them, the shown one in front; another one comes to the front by its button.
    assert tab.find("[data-value$='#steps']").count() == 1
    assert "rank 2, 2 other workers as thin lines" in tab.text(".tl-label .tl-origin")
    tab.page.mouse.move(tab.x_of(100, (0, 300)), tab.plot()["y"] + 30)
    tab.wait_for(".tooltip:has-text('2 other workers')")
    tab.find(".window-button:has-text('rank 0')").click()
    tab.wait_for(".tl-origin:has-text('rank 0, 2 other workers')")
    assert tab.find(".compare tbody tr").count() == 3
    assert "waiting for 2" in tab.find(".tl-rank").nth(1).inner_text(), "not as work of its own"
    tab.find(".window-button:has-text('rank 2')").click()
    tab.wait_for(".tl-origin:has-text('rank 2, 2 other workers')")
    tab.button("time").click()
    tab.settle()
    # On one axis: the other two go on for 69 steps, and nothing lies two seconds away.
    lasted = np.cumsum(np.random.default_rng(3).normal(60, 8, 300))
    assert np.mean(tab.evaluate(MARKS)) == pytest.approx(lasted[230] / lasted[-1], abs=0.01)


def test_a_late_worker_that_only_profiler_windows_show_has_its_rows(tmp_path, open_tab, start_tensorboard):
    for rank, share in enumerate(({"collective": 0.45}, {"collective": 0.45}, {"collective": 0.05, "idle_host": 0.42})):
        run = Generated(seed=rank, gpus=[GPU], rank=rank, world_size=3, job="pod", host=f"node-{rank}", fit_index=0)
        run.steps(100, step_ms=40)
        run.trace(5, 40, **share)
        run.steps(300, step_ms=40)
        write(run, tmp_path / "pod")
    server = start_tensorboard(tmp_path)
    tab = open_tab(server.url)
    tab.panel()
    tab.wait_for(".tl-rank:has-text('holds the others back')")
    late = tab.find(".tl-rank:has-text('holds the others back')").bounding_box()
    box = tab.head()
    y = late["y"] + late["height"] / 2
    tab.page.mouse.move(box["x"] + 200, y + 14)
    tab.wait_for(".tooltip:has-text('waiting for worker 2')")
    assert "estimated from profiler windows" in tab.text(".tooltip")
    ranks = " ".join(tab.text(".ranks").split())
    assert "waiting for worker 2 in 40 % of the traced steps" in ranks and "lost" not in ranks, "one number for it"
    # Hatched: light stripes in what would be one colour.
    reds = [red for red, _, _ in tab.colours_at(".tl-head canvas", range(20, 60), y + 14 - box["y"])]
    assert max(reds) - min(reds) > 50
