"""Recordings that an older version wrote, as this one would have written them."""

import re
import shutil
from pathlib import Path

from gpu_util_callback.recording.container import Container, pack
from gpu_util_callback.recording.schema import FORMAT_MAJOR


def of_this_version(source: Path, folder: Path) -> Path:
    """Copy recordings of format 1 and return the folder; their damage stays as it is."""
    shutil.copytree(source, folder)
    for path in folder.rglob("manifest.json"):
        text = re.sub(r'"format": ?\[1, ?0\]', f'"format":[{FORMAT_MAJOR},0]', path.read_text())
        path.write_text(text.replace('"sealed":', '"covered":0,"sealed":', 1))  # without a top
    for path in folder.rglob("segment-*.npz"):
        stored = Container(path.read_bytes())
        arrays = {name[:-4]: stored.array(name[:-4]) for name in stored._members if "npy" in name}
        path.write_bytes(pack({**stored.index, "format": FORMAT_MAJOR}, arrays))
    return folder
