"""The demo's notebook runs top to bottom, and its cells show what they promise."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import pytest
from fork_server import python

nbformat = pytest.importorskip("nbformat", reason='pip install -e ".[reach]"')
nbclient = pytest.importorskip("nbclient", reason='pip install -e ".[reach]"')
pytest.importorskip("ipykernel", reason='pip install -e ".[reach]"')
pytest.importorskip("tensorflow")

REPOSITORY = Path(__file__).parents[2]
NOTEBOOK = REPOSITORY / "demo" / "notebook.ipynb"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The notebook after a run in an empty folder; the cell that starts a server is left out."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:  # half of the pictures do
        cell["source"] = cell["source"].replace("random((512,", "random((256,")
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="forked", resources={"metadata": {"path": str(folder)}}
    )
    spec = tmp_path_factory.mktemp("jupyter") / "kernels" / "forked" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [*python("keras"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": command, "display_name": "Python", "language": "python"}))
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    # Elsewhere: the browser's event loop may run on this thread.
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as elsewhere:
        patch.setenv("JUPYTER_PATH", str(spec.parents[2]))
        elsewhere.submit(client.execute, env=env).result()
    return {cell["id"]: cell for cell in notebook.cells}


def html(cell) -> str:
    (found,) = [out for out in cell["outputs"] if out["output_type"] == "execute_result"]
    return "".join(found["data"]["text/html"])


def printed(cell, name: str) -> str:
    return "".join("".join(out["text"]) for out in cell["outputs"] if out.get("name") == name)


def test_it_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_the_reports_say_what_was_slow_and_that_it_is_fixed(ran):
    slow, fixed = html(ran["summary"]), html(ran["fixed"])
    assert "Training waits for its input" in slow and "map(augmented)" in slow
    assert re.search(r"<pre[^>]*>[^<]*dataset = dataset\.", slow), "with the line to paste"
    assert all(html(ran[name]).count("gpu-util-report") for name in ("summary", "fixed"))
    assert "<iframe" in html(ran["timeline"]) and "Training waits for its input" in unescape(html(ran["timeline"]))
    assert "Training waits for its input" not in fixed
    before, after = map(float, re.findall(r"([\d.]+) s", printed(ran["fixed"], "stdout"))[-2:])
    assert after < before
    rates = printed(ran["logs"], "stdout")
    assert len(re.findall(r"epoch \d: \d+ % waiting for input, [\d,]+ pictures a second", rates)) == 3


def test_what_is_printed_is_not_mixed_with_the_progress_bar(ran):
    shown = printed(ran["slow"], "stdout")
    lines = [line.split("\r")[-1] for line in shown.split("\n")]
    ours = [line for line in lines if "gpu-util:" in line]
    assert ours, "the verdict at the end of fit"
    assert all(line.startswith("gpu-util:") for line in ours), ours
    for line in printed(ran["slow"], "stderr").splitlines():
        assert "gpu-util:" not in line or line.startswith("gpu-util:"), line
