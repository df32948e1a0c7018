"""Drives the GPU Utilization tab as a person would: by what is on the screen."""

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

# What TensorBoard's own page logs: a library it bundles, its fonts under a path prefix.
FOREIGN = ("favicon.ico", "font-roboto", "Multiple instances of Three.js", "[GroupMarkerNotSet")

# Keeps account of requests whose answer a page has not read, of frames it wants to draw, and of what it has
# put off for a moment.
WATCH = """(() => {
  const busy = (window.busy = new Set()), timers = (window.timers = new Map());
  const until = (promise) => {
    busy.add(promise);
    const done = () => busy.delete(promise);
    promise.then(done, done);
    return promise;
  };
  const { fetch, setTimeout, clearTimeout, requestAnimationFrame, cancelAnimationFrame } = window;
  window.fetch = (...all) => until(fetch(...all));
  for (const read of ['json', 'text', 'arrayBuffer']) {
    const whole = Response.prototype[read];
    Response.prototype[read] = function () { return until(whole.call(this)); };
  }
  window.setTimeout = (act, ms = 0, ...rest) => {
    const run = () => { timers.delete(id); act(...rest); };
    const id = setTimeout(run, ms);
    if (ms <= 150) timers.set(id, [performance.now() + ms, run]);
    return id;
  };
  window.clearTimeout = (id) => { timers.delete(id); clearTimeout(id); };
  window.requestAnimationFrame = (draw) => {
    const id = requestAnimationFrame((now) => { busy.delete(id); draw(now); });
    busy.add(id);
    return id;
  };
  window.cancelAnimationFrame = (id) => { busy.delete(id); cancelAnimationFrame(id); };
  window.frameDrawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
})()"""
# Frame by frame, until two follow each other in which there was nothing to do. Where a page only waits
# for the moment to pass, it has passed.
QUIET = """async () => {
  const hidden = new Promise((done) => setTimeout(done, 1000, true));  // a tab that is not shown draws no frames
  for (let quiet = 0; quiet < 2; ) {
    if (await Promise.race([hidden, frameDrawn()])) return;
    quiet = busy.size || timers.size ? 0 : quiet + 1;
    if (busy.size || !timers.size) continue;
    const [id, [, run]] = [...timers].reduce((first, next) => (next[1][0] < first[1][0] ? next : first));
    clearTimeout(id);
    run();
  }
}"""


def new_page(browser, **options):
    """A page in a context of its own, watched."""
    context = browser.new_context(**options)
    context.add_init_script(WATCH)
    return context.new_page()


def hurry(page, times: float = 10) -> None:
    """Lets whatever takes a page over a second, such as asking again, take a tenth of it, or less."""
    page.add_init_script(
        "const later = setTimeout;"
        f"window.setTimeout = (act, ms, ...rest) => later(act, ms > 1000 ? ms / {times} : ms, ...rest);"
    )


def routed(reply: str, answer):
    """Lets a page's requests for a kind of reply be answered by `answer(route)`."""
    return lambda page: page.route(f"**/gpu_utilization/{reply}*", answer)


class Tab:
    """One open tab.

    Attributes:
        page: the browser page: TensorBoard's with `host`, else our iframe's content alone.
        frame: where our own elements are.
        problems: console errors, uncaught exceptions, requests to other servers.
    """

    def __init__(self, page, url: str, host: bool, expect_errors: bool = False):
        self.context, self.url, self.host = page.context, url, host
        self.page = page
        self.problems: list[str] = []
        self.requests: list[tuple[float, str]] = []
        self.expect_errors = expect_errors
        self._listens = {"console": self._console, "pageerror": self._uncaught, "request": self._request}
        for event, listener in self._listens.items():
            page.on(event, listener)

    def leave(self) -> None:
        """Leaves the page as the next test expects it."""
        for event, listener in self._listens.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")
        self.page.unroute_all()
        self.page.emulate_media(color_scheme="light", forced_colors="none", reduced_motion="no-preference")
        self.context.clear_permissions()

    def _uncaught(self, error) -> None:
        self.problems.append(f"uncaught: {error}")

    def _console(self, message) -> None:
        said = f"{message.text} {message.location}"
        if message.type != "error" or any(text in said for text in FOREIGN):
            return
        if not (self.expect_errors and "Failed to load resource" in message.text):
            self.problems.append(f"console: {said}")

    def _request(self, request) -> None:
        self.requests.append((time.monotonic(), request.url))
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.netloc != urlsplit(self.url).netloc:
            self.problems.append(f"a request left for {request.url}")

    def open(self, link: str = "", wait: bool = True) -> "Tab":
        entry = "" if self.host else "data/plugin_entry.html?name=gpu_utilization"
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{entry}#gpu_utilization{link}", wait_until="commit")
        if wait:
            self.wait_for(".tl-value:not(:empty), .state:not(.loading)", timeout=45)
        return self

    def resize(self, width: int, height: int) -> None:
        """Gives the page another size, as a person would."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.settle()

    def paint(self, scheme: str) -> None:
        """Switches the system between light and dark."""
        self.page.emulate_media(color_scheme=scheme)
        self.settle()

    @property
    def frame(self):
        return self.page.frame_locator("iframe") if self.host else self.page

    def find(self, selector: str):
        return self.frame.locator(selector)

    def button(self, name: str, exact: bool = True):
        return self.frame.get_by_role("button", name=name, exact=exact)

    def wait_for(self, selector: str, timeout: float = 15) -> None:
        self.find(selector).first.wait_for(state="attached", timeout=timeout * 1e3)

    def text(self, selector: str) -> str:
        """What an element says; a space that holds a number to its unit is a space."""
        return self.find(selector).first.inner_text().replace("\u00a0", " ")

    @property
    def _ours(self):
        """Where our own script runs."""
        return next(frame for frame in self.page.frames if "plugin_entry.html" in frame.url)

    def evaluate(self, expression: str, argument=None):
        return self._ours.evaluate(f"(argument) => {expression}", argument)

    def verdict(self) -> str:
        """What the headline says, its first clause and the rest as one sentence."""
        return re.sub(r"\s+([:.;])\s", r"\1 ", " ".join(self.text("h1").split()))

    def panel(self) -> None:
        """Opens the panel with all findings, unless it is open."""
        self.settle()
        if not self.find(".details").count():
            self.find(".all-findings").click()
            self.settle()

    def unfold(self) -> None:
        """Opens the groups of lanes, but for those of lesser ones."""
        self.settle()
        closed = ".tl-labels .tl-group[aria-expanded=false]:not(:has-text('· more')):not(:has-text('each core'))"
        while self.find(closed).count():
            self.find(closed).first.click()
            self.settle()

    def settle(self) -> None:
        """Waits until every request is answered, and what was put off for a moment is done."""
        self._ours.evaluate(QUIET)

    def export(self, item: str):
        """What an entry of the menu of exports saves."""
        self.button("Export").click()
        with self.page.expect_download() as waiting:
            self.find(f".popover :text('{item}')").click()
        return waiting.value

    # -- the timeline -----------------------------------------------------------------------------

    def plot(self) -> dict:
        """Box of the lanes on the page: x, y, width, height."""
        return self.find(".tl-surface").bounding_box()

    def head(self) -> dict:
        return self.find(".tl-head canvas").bounding_box()

    def x_of(self, value: float, bounds: tuple[float, float]) -> float:
        box = self.plot()
        return box["x"] + box["width"] * (value - bounds[0]) / (bounds[1] - bounds[0])

    def address(self) -> str:
        """What the address bar says now; `page.url` is what the driver has heard of it."""
        self.settle()
        return self.page.evaluate("location.href")

    def link(self) -> dict[str, str]:
        """Our keys of the address bar's hash."""
        parts = urlsplit(self.address()).fragment.split("&")
        keys = [part.split("=", 1) for part in parts if part.startswith("p.gpu_utilization.")]
        return {key.removeprefix("p.gpu_utilization."): unquote(value) for key, value in keys}

    def view(self) -> tuple[float, float] | None:
        """The visible range in axis units, None for the whole run."""
        shown = self.link().get("view")
        return tuple(map(float, shown.split("~"))) if shown else None

    def drag(self, start: tuple[float, float], end: tuple[float, float], key: str | None = None):
        mouse = self.page.mouse
        mouse.move(*start)
        if key:
            self.page.keyboard.down(key)
        mouse.down()
        mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        mouse.move(*end)
        mouse.up()
        if key:
            self.page.keyboard.up(key)

    def zoom_wheel(self, x: float, y: float, times: int, delta: float = -100) -> None:
        self.page.mouse.move(x, y)
        self.page.keyboard.down("Control")
        for _ in range(times):
            self.page.mouse.wheel(0, delta)
        self.page.keyboard.up("Control")

    def fingers(self):
        """`touch(kind, *points)` of fingers so many pixels beside the middle of the lanes, near their top."""
        self.find(".tl-surface").scroll_into_view_if_needed()
        client, box = self.context.new_cdp_session(self.page), self.plot()
        x, y = box["x"] + box["width"] / 2, box["y"] + 40

        def touch(kind: str, *points: float) -> None:
            where = [{"x": x + dx, "y": y, "id": i} for i, dx in enumerate(points)]
            client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})

        return touch

    def colour_at(self, selector: str, x: float, y: float) -> tuple[int, int, int]:
        """Colour of a canvas at CSS pixels from its top left corner."""
        return self.colours_at(selector, [x], y)[0]

    def colours_at(self, selector: str, row, y: float) -> list[tuple[int, int, int]]:
        pixels = self.find(selector).evaluate(
            "(c, [row, y]) => row.map((x) => [...c.getContext('2d').getImageData(x * c.width / c.clientWidth, "
            "y * c.height / c.clientHeight, 1, 1).data])",
            [[*row], y],
        )
        return [tuple(pixel[:3]) for pixel in pixels]

    # -- what the server says -------------------------------------------------------------------

    def recording(self, run: str | None = None) -> dict:
        """The `./recording` reply for the shown recording, or the newest of `run`."""
        base = f"{self.url}/data/plugin/gpu_utilization"
        listed = self._json(f"{base}/runs")["recordings"]
        if run is None:
            shown = self.link()["id"]
            one = next(item for item in listed if item["id"] == shown)
        else:
            one = [item for item in listed if item["run"] == run][-1]
        return self._json(f"{base}/recording?id={quote(one['id'], safe='')}")

    def _json(self, url: str) -> dict:
        return json.loads(self.context.request.get(url).body())

    def number(self, selector: str) -> float:
        """The first number in an element's text, thousands separators removed."""
        found = re.search(r"-?\d[\d,]*\.?\d*", self.text(selector))
        assert found, self.text(selector)
        return float(found[0].replace(",", ""))


@dataclass
class Hand:
    """What a person does to the tab, action by action; nothing else touches it.

    Attributes:
        did: what was done, in words.
    """

    tab: Tab
    did: list[str] = field(default_factory=list)

    def click(self, what: str, target: Any, at: tuple[float, float] | None = None) -> None:
        """A click in the middle of an element, or so many pixels from its top left corner."""
        target.click(position=at and {"x": at[0], "y": at[1]})
        self.did.append(f"click {what}")
        self.tab.settle()
