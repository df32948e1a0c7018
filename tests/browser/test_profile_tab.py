"""A real fit with a profiler window, opened by our tab and by TensorBoard's Profile tab."""

import sys
from importlib.metadata import entry_points
from urllib.parse import unquote_plus, urlsplit

import pytest
from packages import need
from programs import ran
from waiting import wait_until
from windowed_fit import FIT

from gpu_util_callback.recording import read_recordings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    need("tensorflow", "xprof")
    if not any(one.name == "gpu_utilization" for one in entry_points(group="tensorboard_plugins")):
        pytest.skip("our plugin is not installed beside TensorFlow's: pip install -e .")
    root = tmp_path_factory.mktemp("profiled")
    ran(sys.executable, "-c", FIT, root / "a fit")
    return root


def test_a_real_fit_is_opened_by_both_tabs(open_tab, logdir, start_tensorboard):
    (recording,) = read_recordings(logdir)
    (window,) = recording.facts["windows"]
    server = start_tensorboard(logdir, False, python=sys.executable)
    tab = open_tab(server.url, host=True, alone=True)
    tab.panel()
    tab.find(".window-button").click()
    wait_until(lambda: tab.find(".kernels tbody tr").count() > 0, what="the ops of the host")
    assert tab.text(".traced h2") == "Step 20"
    ops = tab.text(".kernels")
    assert "MatMul" in ops, ops[:500]
    link = tab.find(".profile-link a")
    wait_until(lambda: link.count() == 1, what="the link to the Profile tab")
    # The Profile tab's own page asks Google for fonts and charts, and copes without them: what
    # it logs and whom it asks is not ours to judge.
    answers = []
    tab.context.on("response", lambda one: answers.append(one))
    with tab.context.expect_page() as opened:
        link.click()
    page = opened.value
    answer = wait_until(
        lambda: next((one for one in answers if is_trace(one.url)), None) or page_waits(page),
        60,
        "the trace in the Profile tab",
    )
    assert f"run=a fit/{window['profile']}&" in unquote_plus(answer.url)
    assert answer.status == 200
    text = answer.text()
    for step in range(20, 26):
        assert f'"train {step}"' in text, "steps are marked for the Profile tab, too"
    address = urlsplit(page.url)
    assert f"{address.scheme}://{address.netloc}" == server.url, "the same TensorBoard"
    frame = next(one for one in page.frames if "plugin/profile" in one.url)
    wait_until(lambda: window["profile"][:10] in frame.locator("body").inner_text(), 20)
    page.close()
    assert tab.text(".traced h2") == "Step 20", "our tab stays as it was"


def is_trace(url):
    return "/plugin/profile/data?" in url and "tag=trace_viewer" in url


def page_waits(page):
    page.wait_for_timeout(50)
