"""During fit: one line per established cause, once."""

from generated_runs import GPU, Generated

from gpu_util_callback.diagnosis import Announcer, Evidence, Run, judge
from gpu_util_callback.diagnosis.verdict import news


def test_an_established_cause_is_said_once():
    run = Generated(seed=1)
    evidence, announcer, said = Evidence(), Announcer(), []
    seen = 0
    for flush in range(60):
        run.steps(60, step_ms=8, wait_ms=25 if flush >= 10 else 0)
        table = run.tables()["steps"]
        evidence.add({"steps": {name: column[seen:] for name, column in table.items()}})
        seen = run.step
        new = announcer.new(judge(Run(run.facts, evidence, run.now)))
        said += [(flush, news(finding)) for finding in new]
    [(flush, line)] = said
    assert line.startswith("Input-bound: ") and "since step 60" in line
    assert 10 + 6 <= flush <= 10 + 12, "ten lost seconds take about seven flushes"


def test_nothing_is_said_of_a_healthy_run():
    run = Generated(seed=2)
    announcer = Announcer()
    run.steps(20, step_ms=8, wait_ms=1000)
    run.steps(5000, step_ms=8)
    for _ in range(5):
        assert announcer.new(run.diagnose(ended=False)) == []


def test_a_cause_of_unknown_cost_is_said_when_it_stays():
    run = Generated(seed=3, gpus=[GPU, GPU | {"index": 1}])
    evidence, announcer, said = Evidence(), Announcer(), []
    seen, sampled = 0, 0
    for flush in range(20):
        begin = run.now
        run.steps(200, step_ms=10)
        run.gpu_value("utilization_pct", (run.now - begin) / 1e9, 0, gpu=1)
        table = run.tables()["steps"]
        samples = {
            group: {name: column[sampled:] for name, column in block.items()} for group, block in run.samples().items()
        }
        evidence.add({"steps": {name: column[seen:] for name, column in table.items()}}, samples)
        seen, sampled = run.step, sampled + len(samples["gpu0"]["time_ns"])
        said += [(flush, news(one)) for one in announcer.new(judge(Run(run.facts, evidence, run.now)))]
    [(flush, line)] = said
    assert line.startswith("1 of 2 GPUs does nothing. ") and "Train on all of the 2 GPUs" in line
    assert flush == announcer.UNKNOWN_IN_A_ROW - 1
