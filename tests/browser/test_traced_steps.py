"""Profiler windows in the tab: found in the timeline, opened at the step that was clicked."""

import json
import urllib.request
from urllib.parse import quote

import numpy as np
import pytest
from make_recording import SyntheticRun, make_recording
from tensorboard_server import TensorBoardServer
from test_tab_access import violations
from waiting import wait_until

STEPS = 600
WINDOWS = ((50, 56), (400, 404))
HOSTILE = "<img src=x onerror='window.pwned=1'>\u202e\0 gemm </table>" + "k" * 3000


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A TensorBoard without a Profile tab, over a run on two GPUs and, older, one on the CPU."""
    root = tmp_path_factory.mktemp("traced")
    run = SyntheticRun(root / "gpus", "thirds", steps=STEPS, gpus=2, past_s=300, windows=WINDOWS)
    run.advance(STEPS, flush=False)
    run.writer.append(
        "kernels",
        {
            "window": [0],
            "gpu": [1],
            "name": [HOSTILE],
            "op": [HOSTILE],
            "count": [3],
            "total_ns": [np.int64(10**9)],
            "tensor_core": ["yes"],
        },
    )
    run.close()
    make_recording(root / "laptop", "no_gpu", steps=90, past_s=2000, windows=((20, 26),))
    with TensorBoardServer(root, load_fast=True) as started:
        yield started


def reply(tab, window):
    base = f"{tab.url}/data/plugin/gpu_utilization"
    with urllib.request.urlopen(f"{base}/window?id={quote(tab.link()['id'], safe='')}&window={window}") as answer:
        return json.load(answer)


def first_cells(tab):
    return tab.find(".kernels tbody tr th").all_inner_texts()


def test_a_click_on_a_window_opens_the_nearest_traced_step(open_tab, traced):
    tab = open_tab(traced.url, "&p.gpu_utilization.axis=steps")
    tab.panel()
    served = reply(tab, 0)
    row = next(one for one in served["steps"] if one["step"] == 53 and one["gpu"] == 0)
    began = tab.recording()["extent"]["start_ns"]
    for axis, at in (("time", row["start_ns"] + row["duration_ns"] / 2 - began), ("steps", 53.5)):
        tab.button(axis).click()
        tab.find(".window-button").first.click()
        tab.button("Zoom to this window").click()
        tab.settle()
        head = tab.head()
        tab.page.mouse.click(tab.x_of(at, tab.view()), head["y"] + head["height"] - 9)
        assert tab.text(".traced h2") == "Step 53", axis
        assert tab.link()["window"] == "0~53"
    # The ten categories of the account, each as recorded, for each GPU.
    lines = tab.find(".traced tbody tr").all_inner_texts()
    assert len(lines) == 11
    kernels = [float(text.split()[0]) for text in lines[0].split("\t")[1:]]
    for gpu, shown in enumerate(kernels):
        true = next(o for o in served["steps"] if (o["step"], o["gpu"]) == (53, gpu))
        assert abs(shown - true["kernel_ns"] / 1e6) < 0.06
    assert tab.find(".profile-link").count() == 0, "this TensorBoard has no Profile tab"
    # A colleague sees the same; Escape goes back to the span.
    link = f"&p.gpu_utilization.id={quote(tab.link()['id'])}&p.gpu_utilization.window=0~53"
    other = open_tab(traced.url, link)
    wait_until(lambda: other.find(".traced h2").count() and other.text(".traced h2") == "Step 53")
    tab.page.keyboard.press("Escape")
    assert tab.find(".traced").count() == 0 and tab.find(".kernels").count() == 0


def test_the_kernel_table_sorts_and_filters_by_keyboard(open_tab, traced):
    tab = open_tab(traced.url, "&p.gpu_utilization.axis=steps")
    tab.panel()
    tab.find(".window-button").first.focus()
    tab.page.keyboard.press("Enter")
    # The step's own kernels first: less time than in the whole window, which is a click away.
    wait_until(lambda: tab.find(".kernels tbody tr").count() == 12)
    served = reply(tab, 0)["step_kernels"]
    for step in (50, 53):
        if step != 50:
            tab.find("select[aria-label='Traced step']").select_option(str(step))
        assert tab.text(".traced h2") == f"Step {step}"
        longest = max((row for row in served["rows"] if row[0] == step), key=lambda row: row[4])
        first = tab.find(".kernels tbody tr").first.inner_text()
        assert served["names"][longest[2]] in first and f"{longest[4] / 1e6:.3g} ms" in first
    tab.find(".kernels").get_by_role("button", name="steps 50–55").click()
    wait_until(lambda: tab.find(".kernels tbody tr").count() == 13)
    assert "onerror" in first_cells(tab)[0], "the longest first, its name as the text it is"
    assert len(first_cells(tab)[0]) < 500
    tab.find(".kernels thead button").filter(has_text="calls").focus()
    tab.page.keyboard.press("Enter")
    assert tab.find(".kernels th[aria-sort='descending']").inner_text().startswith("calls")
    counts = [int(text) for text in tab.find(".kernels tbody td:nth-child(4)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    tab.page.keyboard.press("Enter")
    assert tab.find(".kernels th[aria-sort='ascending']").count() == 1
    tab.find(".kernels input").fill("nvjet matmul")
    assert tab.find(".kernels tbody tr").count() == 2
    tab.find(".kernels select").select_option("1")
    (row,) = tab.find(".kernels tbody tr").all_inner_texts()
    assert row.split("\t")[8:] == ["9.4 %", "yes", "168", "132 × 384"]
    assert tab.evaluate("window.pwned") is None
    assert not violations(tab)


def test_a_window_of_the_host_alone_shows_its_ops(open_tab, traced):
    tab = open_tab(traced.url, "&p.gpu_utilization.axis=steps")
    tab.panel()
    tab.find(".chooser-button").click()
    tab.find(".run-name").filter(has_text="laptop").click()
    wait_until(lambda: tab.find(".window-button").count() == 1)
    tab.find(".window-button").click()
    wait_until(lambda: tab.find(".kernels tbody tr").count() == 3)
    assert "_FusedConv2D" in tab.text(".kernels tbody tr")
    rows = tab.find(".traced tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in rows] == ["rest of the step", "waiting for input", "step"]
    assert "no GPU was traced" in tab.text(".traced caption")


def test_a_window_shows_kernels_at_once_on_a_laptops_screen(open_tab, traced):
    tab = open_tab(traced.url, width=1280, height=656)  # TensorBoard's own bar is above
    tab.panel()
    tab.find(".window-button").first.click()
    tab.wait_for(".kernels td")
    tab.settle()
    rows = tab.find(".kernels tbody tr")
    bottom = tab.find(".middle").bounding_box()
    for at in range(2):
        box = rows.nth(at).bounding_box()
        assert box["y"] + box["height"] <= bottom["y"] + bottom["height"] + 14, at
