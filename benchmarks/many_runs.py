"""A log directory of thousands of recordings: some written by the real writer, the rest copies.

A copy shares its rows with the original (hard links) and has a manifest of its own: other times,
host, user, script and name, so that no two are the same run.
"""

import json
import os
import random
import sys
from pathlib import Path

from make_recording import make_recording

from gpu_util_callback.diagnosis.run_reports import Recorded
from gpu_util_callback.diagnosis.run_summary import summary_as_diagnosed, written
from gpu_util_callback.recording.manifest import parse
from gpu_util_callback.recording.schema import SUMMARY_FILE

PLUGIN = Path("plugins") / "gpu_utilization"
SCENARIOS = ("thirds", "healthy", "slow", "host_stall", "hidden")
SCRIPTS = ("train.py", "finetune.py", "pretrain.py", "eval_loop.py")
GPU_MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L4")
WEEK_NS = 7 * 86_400 * 10**9


def make_many(logdir, count: int, originals: int = 20, gpus: int = 3, seed: int = 0, summaries: bool = True) -> Path:
    """Write `count` runs of `gpus` GPUs and mixed causes; `summaries`: those that a recorder leaves, too."""
    logdir = Path(logdir)
    made = [
        make_recording(
            logdir / f"run{at:05d}",
            SCENARIOS[at % len(SCENARIOS)],
            steps=120 + 20 * at,
            gpus=gpus,
            seed=at,
            scalars=False,
        )
        for at in range(min(count, originals))
    ]
    manifests = [json.loads((path / "manifest.json").read_bytes()) for path in made]
    rng = random.Random(seed)
    for at in range(count):
        of = at % len(made)
        facts = json.loads(json.dumps(manifests[of]))
        _vary(facts, at, rng)
        if at < len(made):
            folder = made[of]
        else:
            name = f"20260101T000000.000Z-host-0-{at}"
            folder = logdir / f"run{at:05d}" / PLUGIN / name
            folder.mkdir(parents=True)
            for file in made[of].iterdir():
                if file.name not in ("manifest.json", SUMMARY_FILE):
                    os.link(file, folder / file.name)
        data = json.dumps(facts).encode()
        (folder / "manifest.json").write_bytes(data)
        summary = summary_as_diagnosed(Recorded(parse(data)[0]), "ended")
        assert summary is not None
        if summaries and (written_summary := written(summary)) is not None:
            (folder / SUMMARY_FILE).write_bytes(written_summary)
    return logdir


def _vary(facts: dict, at: int, rng: random.Random) -> None:
    later = at * 3_600 * 10**9 - (at % 5) * WEEK_NS
    for name in ("started_ns", "ended_ns", "heartbeat_ns", "heartbeat_wall_ns"):
        facts[name] += later
    for span in facts["diagnosis"]["spans"]:
        span["start_ns"] += later
        span["end_ns"] += later
    facts["host"] = f"node-{rng.randrange(40)}"
    facts["user"] = f"user{rng.randrange(25)}"
    facts["script"] = rng.choice(SCRIPTS)
    facts["pid"], facts["process_started"] = 1000 + at, at
    model = rng.choice(GPU_MODELS)
    for gpu in facts["gpus"]:
        gpu["name"] = model
        gpu["uuid"] = f"GPU-{at}-{gpu['index']}"


if __name__ == "__main__":
    make_many(sys.argv[1], int(sys.argv[2]))
