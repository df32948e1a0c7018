"""Drives the GPU Utilization tab as a person would: by what is on the screen."""

import json
import re
import time
from urllib.parse import quote, unquote, urlsplit

# What TensorBoard's own page logs: a library it bundles, its fonts under a path prefix.
FOREIGN = ("favicon.ico", "font-roboto", "Multiple instances of Three.js", "[GroupMarkerNotSet")

# A frame, the timers of the page that are due within 130 ms (the longest, by which values beside
# the lanes are written, has 100 ms), and the frame that draws what they changed.
QUIET = """() => new Promise((done) => {
  setTimeout(done, 1000);  // a tab that is not shown draws no frames
  const frame = (next) => requestAnimationFrame(() => setTimeout(next));
  frame(() => setTimeout(() => frame(() => frame(done)), 130));
})"""


class Tab:
    """One open tab.

    Attributes:
        page: the browser page: TensorBoard's with `host`, else our iframe's content alone.
        frame: where our own elements are.
        problems: console errors, uncaught exceptions, requests to other servers.
    """

    def __init__(self, context, url: str, host: bool):
        self.context, self.url, self.host = context, url, host
        self.page = context.new_page()
        self.problems: list[str] = []
        self.requests: list[tuple[float, str]] = []
        self.in_flight = 0
        self.expect_errors = False
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        self.page.on("request", self._request)
        self.page.on("requestfinished", self._answered)
        self.page.on("requestfailed", self._answered)

    def _console(self, message) -> None:
        said = f"{message.text} {message.location}"
        if message.type != "error" or any(text in said for text in FOREIGN):
            return
        if not (self.expect_errors and "Failed to load resource" in message.text):
            self.problems.append(f"console: {said}")

    def _request(self, request) -> None:
        self.requests.append((time.monotonic(), request.url))
        self.in_flight += 1
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.netloc != urlsplit(self.url).netloc:
            self.problems.append(f"a request left for {request.url}")

    def _answered(self, request) -> None:
        self.in_flight -= 1

    def open(self, hash_: str = "", wait: bool = True) -> "Tab":
        if self.host:
            self.page.goto(f"{self.url}/#gpu_utilization{hash_}")
        else:
            entry = f"{self.url}/data/plugin_entry.html?name=gpu_utilization"
            self.page.goto("about:blank")
            self.page.goto(f"{entry}#gpu_utilization{hash_}")
        if wait:
            self.wait_for(".tl-value:not(:empty), .state", timeout=45)
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

    def evaluate(self, expression: str, argument=None):
        return self.find("body").evaluate(f"(body, argument) => {expression}", argument)

    def settle(self, timeout: float = 10) -> None:
        """Waits until every request is answered, and what was put off for a moment is done.

        The page's own timers are waited for with a timer of the page, so that a slow machine delays
        both alike.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            asked = len(self.requests)
            self.find("body").evaluate(QUIET)
            if not self.in_flight and len(self.requests) == asked:
                break

    # -- the timeline -----------------------------------------------------------------------------

    def plot(self) -> dict:
        """Box of the lanes on the page: x, y, width, height."""
        return self.find(".tl-surface").bounding_box()

    def head(self) -> dict:
        return self.find(".tl-head canvas").bounding_box()

    def x_of(self, value: float, bounds: tuple[float, float]) -> float:
        box = self.plot()
        return box["x"] + box["width"] * (value - bounds[0]) / (bounds[1] - bounds[0])

    def link(self) -> dict[str, str]:
        """Our keys of the address bar's hash."""
        self.settle()
        parts = urlsplit(self.page.url).fragment.split("&")
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
            self.page.wait_for_timeout(20)
        self.page.keyboard.up("Control")

    def colour_at(self, selector: str, x: float, y: float) -> tuple[int, int, int]:
        """Colour of a canvas at CSS pixels from its top left corner."""
        pixel = self.find(selector).evaluate(
            "(c, [x, y]) => [...c.getContext('2d').getImageData(x * c.width / c.clientWidth, "
            "y * c.height / c.clientHeight, 1, 1).data]",
            [x, y],
        )
        return tuple(pixel[:3])

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
