"""Five things a newcomer wants from the tab, done with counted clicks, drags and keys."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_tab import Tab

MOST_ACTIONS = 3


@dataclass
class Hand:
    """What a person does to the tab, action by action; nothing else touches it.

    Attributes:
        did: what was done, in words.
        after: called after each action, e.g. to take a picture.
    """

    tab: Tab
    after: Callable[[int], Any] = lambda count: None
    did: list[str] = field(default_factory=list)

    def click(self, what: str, target: Any, at: tuple[float, float] | None = None) -> None:
        """A click in the middle of an element, or so many pixels from its top left corner."""
        target.click(position=at and {"x": at[0], "y": at[1]})
        self._done(f"click {what}")

    def drag(self, what: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A drag with the left button."""
        self.tab.drag(start, end)
        self._done(f"drag {what}")

    def choose(self, what: str, target: Any, value: str) -> None:
        """An entry of a list box."""
        target.select_option(value)
        self._done(f"choose {what}")

    def _done(self, what: str) -> None:
        self.did.append(what)
        self.tab.settle()
        self.after(len(self.did))


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: for files.
        goal: what the person wants to know or do.
        do: does it with a `Hand`; returns the answer as it stands on the screen.
    """

    name: str
    goal: str
    do: Callable[[Hand], str]


def _cause(hand: Hand) -> str:
    verdict = hand.tab.text("h1")
    return f"{verdict} {hand.tab.text('.advice')}"


def _began(hand: Hand) -> str:
    hand.click("“zoom” beside the span", hand.tab.find(".selected-nav").get_by_text("zoom").first)
    return hand.tab.text(".selected .facts")


def _compare(hand: Hand) -> str:
    hand.click("the run's name", hand.tab.find(".chooser-button"))
    other = hand.tab.find(".choice:has(.run-name:has-text('healthy'))")
    hand.click("“compare” at another run", other.locator("input"))
    hand.click("the run's name, to close the list", hand.tab.find(".chooser-button"))
    rows = hand.tab.find(".compare tbody tr").all_inner_texts()
    return " | ".join(" ".join(row.split()) for row in rows)


def _share(hand: Hand) -> str:
    box = hand.tab.head()
    y = box["y"] + 25
    left, width = box["x"], box["width"]
    hand.drag("over a part of the overview", (left + 0.3 * width, y), (left + 0.5 * width, y))
    hand.click("“Share view”", hand.tab.button("Share view"))
    return hand.tab.page.url


def _kernel(hand: Hand) -> str:
    tab = hand.tab
    windows = tab.find(".window-button")
    hand.click("the profiler window that has step 100", windows.first)
    if tab.text(".traced h2") != "Step 100":
        hand.choose("step 100", tab.find("select[aria-label='Traced step']"), "100")
    row = tab.find(".kernels tbody tr").first
    return row.inner_text().replace("\t", " ")


TASKS = (
    Task("cause", "Find the cause", _cause),
    Task("began", "Find when it began", _began),
    Task("compare", "Compare two runs", _compare),
    Task("share", "Send a colleague the exact view", _share),
    Task("kernel", "Find the slowest kernel of step 100", _kernel),
)
