"""Record what the server replies about some scenes of the gallery, for the tab's own tests of its texts.

`python -m harness.replies` writes `frontend/src/views/replies/`; `test_recorded_replies.py` fails where they
are no longer what the server says.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "frontend" / "src" / "views" / "replies"
sys.path.insert(0, str(ROOT / "harness" / "support"))

from gallery import SCENES, STARVING_RANK  # noqa: E402
from plugin_app import PluginApp  # noqa: E402

# The ranks whose recordings are kept; the other scenes have one.
RECORDED = {"workers": (0, STARVING_RANK, 5), "waiting": (0,)}


def record(name: str, root: Path) -> str:
    """The replies about a scene as JSON, by route; those about a recording by its id."""
    SCENES[name](root)
    app = PluginApp(root)
    runs = app.json("/runs")
    kept = [one["id"] for one in runs["recordings"] if one["rank"] in RECORDED[name]]
    reports = {id: app.json("/recording", id=id) for id in kept}
    for reply in reports.values():  # no reader of the page sees them, and each change of a rule would show
        reply["report"] |= {"rules_version": 0, "thresholds": {}, "silent": []}
    replies: dict[str, Any] = {
        "runs": runs,
        "total": app.json("/total"),
        "recording": reports,
        "job": app.json("/job", id=kept[0]),
    }
    text = json.dumps(replies, ensure_ascii=False).replace(str(root), "/logs").replace(f"-{os.getpid()}", "-1")
    return re.sub(r'"revision": "\w+"', '"revision": "1"', text) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for scene in RECORDED:
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{scene}.json").write_text(record(scene, Path(folder) / "logs"))
