"""Try the tab as a newcomer would: five tasks, every action counted and photographed.

python demo/trial.py     # after DEMO_SERVE=0 make demo; writes demo/trial.md and demo/trial/*.png
"""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "support"), str(HERE.parent / "tests" / "browser")]

LOGS = HERE / "logs"
OUT = HERE / "trial"
PAGE = HERE / "trial.md"
STARVED = "2-slow-map"
TRACED = "4-traced"
MOST_BYTES = 200_000

# A fit whose steps 98 to 103 are traced; on a machine without a GPU its kernels are the host's ops.
FIT = """
import sys
import keras, numpy as np, tensorflow as tf
from gpu_util_callback import GpuUtilCallback
random = np.random.default_rng(0)
x = random.normal(size=(64 * 140, 28, 28, 1)).astype("float32")
y = random.integers(0, 10, len(x))
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64).prefetch(2)
model = keras.Sequential([
    keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Conv2D(32, 3, activation="relu"),
    keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10),
])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, verbose=0, callbacks=[GpuUtilCallback(sys.argv[1], trace=[(98, 104)])])
"""


def main() -> int:
    """Do the tasks; returns an exit code."""
    from chromium import FLAGS, find
    from five_tasks import MOST_ACTIONS, TASKS
    from playwright.sync_api import sync_playwright
    from tensorboard_server import TensorBoardServer

    from gpu_util_callback import read_recordings

    if not (LOGS / STARVED).is_dir():
        print(f"no run {STARVED} in {LOGS}: run `DEMO_SERVE=0 make demo` first", file=sys.stderr)
        return 2
    if not (LOGS / TRACED).is_dir():
        subprocess.run([sys.executable, "-c", FIT, str(LOGS / TRACED)], check=True)
    ids = {recording.run: recording.id for recording in read_recordings(LOGS)}
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.png"):
        old.unlink()
    lines = [
        "# Five tasks, as a newcomer does them",
        "",
        "Made by `python demo/trial.py` on the runs of `make demo`. At most "
        f"{MOST_ACTIONS} actions each; a click, a drag, a choice is one. "
        "`tests/browser/test_five_tasks.py` checks the answers.",
    ]
    with TensorBoardServer(LOGS, load_fast=True) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=FLAGS)
        for task in TASKS:
            run = TRACED if task.name == "kernel" else STARVED
            lines += _try(task, browser, server.url, ids[run])
        browser.close()
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE)
    return 0


def _try(task, browser, url: str, recording: str) -> list[str]:
    """One task in a fresh browser; its part of the page."""
    from five_tasks import MOST_ACTIONS, Hand
    from gpu_tab import Tab

    context = browser.new_context(viewport={"width": 1120, "height": 700})
    tab = Tab(context, url, host=True)
    tab.open(f"&p.gpu_utilization.id={quote(recording, safe='')}")
    tab.settle()
    pictures: list[str] = []

    def photograph(count: int) -> None:
        path = OUT / f"{task.name}-{count}.png"
        tab.page.screenshot(path=path)
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")
        pictures.append(path.name)

    photograph(0)
    hand = Hand(tab, after=photograph)
    said = task.do(hand).replace(url, "http://localhost:6006")
    said = re.sub(r"(?<=%2F)\d{8}T[^&\s]+", "…", said)  # the recording's folder names its machine
    context.close()
    if len(hand.did) > MOST_ACTIONS:
        raise SystemExit(f"{task.goal} took {len(hand.did)} actions: {hand.did}")
    done = [f"{place}. {what}" for place, what in enumerate(hand.did, 1)]
    if hand.did:  # all tasks begin alike
        (OUT / pictures.pop(0)).unlink()
    return [
        "",
        f"## {task.goal}: {len(hand.did)} {'action' if len(hand.did) == 1 else 'actions'}",
        "",
        *(done or ["Nothing to do: it is there when the tab opens."]),
        "",
        f"> {said}",
        "",
        *(f"![{task.goal}](trial/{name})" for name in pictures),
    ]


if __name__ == "__main__":
    sys.exit(main())
