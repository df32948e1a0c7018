"""When windows open: schedules, budget, other people's profiles. With a clock of our own."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_util_callback.profiling.schedule import Action, Planner, TraceSchedule

S = 1_000_000_000


@dataclass
class Fit:
    """A made-up fit: every step takes `step_s`, a window costs what `costs` says."""

    planner: Planner
    steps_per_epoch: int = 1000
    per_call: int = 1
    step_s: float = 0.01
    costs: tuple[float, float, float, float] = (0.001, 0.0, 0.01, 0.2)  # start slowed stop parse
    claims: tuple[tuple[int, int], ...] = ()
    known_epoch: bool = True
    planned: int | None = None
    busy: tuple[tuple[int, int], ...] = ()  # steps during which somebody else profiles
    validation_s: float = 0.0
    now_ns: int = 1_000 * S
    windows: list = field(default_factory=list)
    opened_at: list[int] = field(default_factory=list)  # the step at which the profiler started
    spent_log: list = field(default_factory=list)

    def run(self, steps: int) -> "Fit":
        begin_ns = self.now_ns
        self.planner.begin(
            self.now_ns, self.steps_per_epoch if self.known_epoch else None, self.per_call, self.claims, self.planned
        )
        start_s, slowed_s, stop_s, parse_s = self.costs
        behind = []  # (due, window)
        step = 0
        while step < steps:
            for due, window in list(behind):
                if self.now_ns >= due:
                    self._finish(window, stop_s, parse_s, begin_ns)
                    behind.remove((due, window))
            action = self.planner.boundary(step, self.now_ns)
            if action is Action.OPEN:
                if any(a <= step < b for a, b in self.busy):
                    self.planner.refused(self.now_ns)
                else:
                    began_ns = self.now_ns
                    self.now_ns += int(start_s * S)
                    self.opened_at.append(step)
                    self.planner.opened(began_ns, start_s)
            elif action is Action.CLOSE:
                behind.append((self.now_ns + int((stop_s + parse_s) * S), self._closed(step)))
            extra = slowed_s if self.planner.window is not None else 0.0
            self.now_ns += int((self.step_s + extra) * S * self.per_call)
            step += self.per_call
            if step % self.steps_per_epoch == 0:
                window = self.planner.epoch_ended()
                if window is not None:
                    self.windows.append(window)
                    behind.append((self.now_ns + int((stop_s + parse_s) * S), window))
                self.now_ns += int(self.validation_s * S)
        window = self.planner.epoch_ended()
        if window is not None:
            self.windows.append(window)
        return self

    def _closed(self, step):
        window = self.planner.closed()
        assert window.stop <= step
        self.windows.append(window)
        return window

    def _finish(self, window, stop_s, parse_s, begin_ns):
        cost_s = self.planner.finished(window.index, stop_s, parse_s)
        self.spent_log.append(((self.now_ns - begin_ns) / S, self.planner.spent_s, cost_s))

    @property
    def marked(self) -> list[list[int]]:
        return [window.marked for window in self.windows]


def fit(schedule=None, share=0.01, guess_s=1.0, warmup=0, **kwargs) -> Fit:
    return Fit(Planner(schedule or TraceSchedule(), share, guess_s, warmup), **kwargs)


# -- named steps -------------------------------------------------------------------------------


def test_with_warmup_the_profiler_starts_a_step_earlier():
    run = fit(TraceSchedule.of([(3, 6), (0, 1)]), warmup=1).run(40)
    assert run.marked == [[0], [3, 4, 5]]
    assert [(w.first, w.stop) for w in run.windows] == [(0, 1), (3, 6)]
    assert run.opened_at == [0, 2]
    assert run.planner.why_none(run.now_ns) is None


@pytest.mark.parametrize("warmup, opened_at", [(0, 16), (1, 8)])
def test_several_batches_in_one_call(warmup, opened_at):
    run = fit(TraceSchedule.of([(17, 30)]), per_call=8, steps_per_epoch=800, warmup=warmup).run(80)
    assert run.marked == [[16, 24]]
    assert run.opened_at == [opened_at]


def test_every_so_many_steps():
    schedule = TraceSchedule(first=5, every=50, steps=3, count=3, within_budget=False)
    assert fit(schedule).run(400).marked == [[5, 6, 7], [55, 56, 57], [105, 106, 107]]


def test_every_so_many_steps_within_the_budget_are_held_back():
    run = fit(TraceSchedule(first=5, every=50, steps=3), guess_s=0.5).run(8000)
    assert run.windows[0].first == 5000  # 0.5 s are 1 % of 50 s
    for elapsed_s, spent_s, _ in run.spent_log:
        assert spent_s <= 0.01 * elapsed_s


@pytest.mark.parametrize(
    "schedule, how, steps, reason, cure",
    [
        ([(100, 105)], {}, 40, "40 steps, before step 100", "trace=[(20, 25)]"),
        ([(3, 6)], {"busy": ((0, 10_000),)}, 500, "another profiler", "trace="),
        ("auto", {}, 300, "the run ended after 3.0 s, before the first window", "trace=[(100, 105)] profiles"),
        ("auto", {}, 1, "due at 100 s", "trace=[(0, 1)]"),
        ("auto", {"share": 0.0}, 2000, "", ""),
    ],
)
def test_a_run_without_a_window_says_why_and_names_steps_that_exist(schedule, how, steps, reason, cure):
    run = fit(TraceSchedule.of(schedule), **how).run(steps)
    assert run.windows == []
    said = run.planner.why_none(run.now_ns)
    assert reason in said[0] and cure in said[1]


# -- somebody else's profiles ------------------------------------------------------------------


@pytest.mark.parametrize("claim, first", [((2, 5), 5), ((7, 9), 3)])
def test_a_named_range_moves_behind_a_claim_that_it_meets(claim, first):
    run = fit(TraceSchedule.of([(3, 6)]), claims=(claim,)).run(40)
    assert run.marked == [[first, first + 1, first + 2]]
    assert [(w.wanted, w.first, w.stop) for w in run.windows] == [((3, 6), first, first + 3)]


def test_ranges_moved_onto_each_other_do_not_overlap():
    run = fit(TraceSchedule.of([(3, 6), (7, 9)]), claims=((2, 5), (8, 10)), warmup=1).run(60)
    assert [len(window) for window in run.marked] == [3, 2]
    steps = [step for window in run.marked for step in window]
    assert len(set(steps)) == 5
    assert not any(a - 1 <= s < b for s in steps for a, b in run.claims)


def test_a_named_range_waits_while_somebody_profiles():
    run = fit(TraceSchedule.of([(3, 6)]), busy=((0, 10),)).run(500)
    (marked,) = run.marked
    assert len(marked) == 3
    assert marked[0] >= 200  # tried again after two seconds
    assert run.windows[0].wanted == (3, 6)


def test_giving_way_takes_the_range_again_later():
    planner = Planner(TraceSchedule.of([(3, 6)]), 0.01, 1.0)
    planner.begin(0)
    actions = {}
    for step in range(400):
        now = step * S // 10
        actions[step] = planner.boundary(step, now)
        if actions[step] is Action.OPEN:
            planner.opened(now, 0.0)
        if step == 4:
            planner.release_window(now)
        if actions[step] is Action.CLOSE:
            window = planner.closed()
            break
    assert window.marked == [24, 25, 26]
    assert planner.windows_opened == 1


# -- the budget --------------------------------------------------------------------------------


def test_the_first_window_waits_until_a_cautious_guess_fits():
    run = fit(guess_s=1.0).run(11_000)
    assert 10_000 <= run.windows[0].first <= 10_000 + 10
    assert {len(marked) for marked in run.marked} == {TraceSchedule.steps}


@pytest.mark.parametrize("planned, first", [(11_000, 1_000), (9_900, 10_000), (None, 10_000)])
def test_a_fit_that_is_planned_to_pay_for_it_has_its_first_window_early(planned, first):
    run = fit(guess_s=1.0, planned=planned).run(11_000)  # steps of 10 ms: 110 s pay for 1 s at 1 %
    assert first <= run.windows[0].first <= first + 10
    assert run.spent_log[-1][1] <= 0.01 * 110


def test_an_early_window_waits_for_a_profiler_that_is_taken():
    run = fit(guess_s=1.0, planned=11_000, busy=((0, 1_100),)).run(11_000)
    assert 1_100 <= run.windows[0].first < 1_400


def test_no_automatic_window_meets_an_epochs_end_or_its_first_steps():
    run = fit(share=0.5, steps_per_epoch=40).run(20_000)
    assert len(run.windows) > 20
    for window in run.windows:
        into = window.first % 40
        assert into >= Planner.SETTLED
        assert into + window.stop - window.first <= 40
        assert window.marked == list(range(window.first, window.stop))


def test_short_epochs_still_get_windows():
    run = fit(share=0.5, steps_per_epoch=4).run(4_000)
    assert run.windows
    assert all(window.first % 4 == 0 for window in run.windows)


def test_windows_become_rarer_as_the_run_grows():
    run = fit(share=0.5, step_s=1.0, steps_per_epoch=100_000).run(100_000)
    assert 60 < len(run.windows) < 130


def test_a_slow_window_is_measured_by_the_steps_it_slowed():
    # Steps of 10 ms take 60 ms in a window: 5 x 50 ms, and 1 ms of start.
    run = fit(share=0.2, costs=(0.001, 0.05, 0.01, 0.2)).run(1_200)
    assert run.spent_log[0][2] == pytest.approx(0.251 + 0.21, abs=0.002)


def test_a_window_waits_until_the_budget_has_room_for_what_the_last_one_cost():
    planner = Planner(TraceSchedule(), 0.01, 1.0)
    planner.begin(0)
    assert planner.attends_ns == 100 * S - Planner.LOOK_AHEAD_NS
    for step in range(300):
        action = planner.boundary(step, step * S)
        if action is Action.OPEN:
            opened_ns = step * S
            planner.opened(opened_ns, 0.0)
        elif action is Action.CLOSE:
            break
    assert opened_ns == 100 * S
    planner.finished(planner.closed().index, stop_s=0.3, parse_s=0.6)
    assert planner.spent_s == pytest.approx(0.9)
    assert planner.attends_ns == pytest.approx(180 * S - Planner.LOOK_AHEAD_NS)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    share=st.sampled_from([0.002, 0.01, 0.05]),
    step_s=st.floats(0.001, 0.2),
    costs=st.tuples(st.floats(0, 0.1), st.floats(0, 0.02), st.floats(0.001, 0.3), st.floats(0.05, 0.4)),
    steps_per_epoch=st.integers(1, 400),
    warmup=st.integers(0, 1),
    known_epoch=st.booleans(),
    planned=st.sampled_from([None, 6000]),
    claims=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 30)), max_size=3),
)
def test_whatever_the_fit_the_budget_holds(share, step_s, costs, steps_per_epoch, warmup, known_epoch, planned, claims):
    run = fit(
        share=share,
        guess_s=1.5,  # cautious: more than the first window can cost here
        warmup=warmup,
        step_s=step_s,
        costs=costs,
        steps_per_epoch=steps_per_epoch,
        known_epoch=known_epoch,
        planned=planned,
        claims=tuple((a, a + n) for a, n in claims),
        validation_s=0.5,
    ).run(6000)
    for elapsed_s, spent_s, _ in run.spent_log:
        assert spent_s <= share * max(elapsed_s, (planned or 0) * step_s) + 1e-6
    assert run.planner.window is None
    last = -1
    for window in run.windows:
        assert window.marked == sorted(set(window.marked))
        assert all(window.first <= step < window.stop for step in window.marked)
        assert window.first > last
        last = window.stop - 1
        assert len({step // steps_per_epoch for step in window.marked}) <= 1
        for first, stop in run.claims:
            assert window.stop <= first or window.first - warmup >= stop


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), min_size=1, max_size=6),
    steps_per_epoch=st.integers(1, 90),
    warmup=st.integers(0, 1),
    known_epoch=st.booleans(),
)
def test_named_steps_are_marked_once_and_only_those(ranges, steps_per_epoch, warmup, known_epoch):
    schedule = TraceSchedule.of([(first, first + length) for first, length in ranges])
    run = fit(schedule, steps_per_epoch=steps_per_epoch, warmup=warmup, known_epoch=known_epoch).run(300)
    steps = [step for window in run.marked for step in window]
    assert steps == [step for first, stop in schedule.ranges for step in range(first, stop)]
    assert all(len({step // steps_per_epoch for step in window}) <= 1 for window in run.marked)
