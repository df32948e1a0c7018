"""The script around the trainings: what it prints, writes and returns, whatever they answer."""

import json

import gpu_evidence
import pytest
from evidence.scenarios import SCENARIOS

TRUE = {one.name: sorted(one.expected) for one in SCENARIOS}
MACHINE = {
    "gpu": "NVIDIA H200",
    "memory_gib": 140.4,
    "driver": "580.1",
    "cuda": "13.0",
    "mig": False,
    "nvml": None,
    "cpus": 16,
    "python": "3.12.3",
    "packages": {"jax": "0.11.2", "keras": "3.15.1", "nvidia-cublas": "13.1"},
}


def answered(causes, **more):
    return {
        "causes": causes,
        "windows": 2,
        "unavailable": [],
        "nvml_pct": 97.0,
        "findings": [],
        "sm_active_pct": 80.0,
        "kernel_busy_pct": 95.0,
        "any_busy_pct": 96.0,
        **more,
    }


@pytest.fixture
def evidence(tmp_path, monkeypatch, capsys):
    """Runs the script with children that answer as a function (scenario, job) says."""
    monkeypatch.setattr(gpu_evidence, "machine", lambda environ: MACHINE)
    monkeypatch.setattr(gpu_evidence, "missing", lambda backend: [])

    def run(child, *arguments):
        jobs = []

        def run_child(module, job, folder, environ, limit_s):
            jobs.append((module, job.scenario, job.windows, environ, limit_s, job.log_dir))
            return child(job.scenario, job)

        monkeypatch.setattr(gpu_evidence, "run_child", run_child)
        code = gpu_evidence.main(["--backend", "jax", "--out", str(tmp_path), *arguments])
        kind = "costs" if "--costs" in arguments else "results"
        written = json.loads((tmp_path / f"{kind}-jax.json").read_text())
        return code, capsys.readouterr().out, written, jobs

    return run


def row(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"{name} "))


def test_all_verdicts_right(evidence):
    code, text, written, jobs = evidence(lambda name, job: answered(TRUE[name]))
    assert code == 0
    assert "9 of 9 verdicts are right" in text
    assert "NVIDIA H200, 140.4 GiB, driver 580.1 (CUDA 13.0)" in text and "jax 0.11.2" in text
    assert [one["scenario"] for one in written["results"]] == list(TRUE)
    assert written["machine"] == MACHINE and written["stand_in"] is False
    assert row(text, "copies").split() == [
        "copies",
        "transfer_bound",
        "transfer_bound",
        "97",
        "80",
        "95",
        "96",
        "yes",
        "right",
    ]
    # One GPU, by the driver's number; what jobs need of the environment.
    environ = {name: one for _, name, _, one, *_ in jobs}
    assert environ["healthy"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert environ["competitor"]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "triton" in environ["float32"]["XLA_FLAGS"]


def failing(name, job):
    if name == "copies":
        raise OSError("no room on the disk")
    if name == "slow-input":
        return {"error": "no end within 150 s", "log": ["at it"]}
    finding = {"cause": "throttled", "lost_s": 2.5, "evidence": {"clock_mhz": 900}}
    return answered([], windows=0, findings=[finding]) if name == "float32" else answered(TRUE[name])


def test_wrong_verdicts_and_what_fails_lose_no_other_and_show_their_numbers(evidence):
    code, text, written, _ = evidence(failing)
    assert code == 1
    assert "6 of 9 verdicts are right; wrong: slow-input, copies, float32" in text
    assert "copies: OSError: no room on the disk" in text and "| at it" in text
    assert row(text, "float32").endswith("WRONG")
    assert "float32: not found: no_tensor_cores; no profiler window" in text
    assert "throttled (2.5 s): clock_mhz 900" in text
    wrong = [one["scenario"] for one in written["results"] if not one["right"]]
    assert wrong == ["slow-input", "copies", "float32"] and len(written["results"]) == 9


def test_a_crash_is_repeated_without_windows_and_stays_wrong(evidence):
    def crashing(name, job):
        if name == "full-memory" and job.windows:
            return {"error": "ended by SIGSEGV", "signal": "SIGSEGV", "log": ["stop_trace"]}
        return answered(TRUE[name])

    code, text, _, jobs = evidence(crashing)
    assert code == 1 and "8 of 9 verdicts are right; wrong: full-memory" in text
    assert "memory_pressure" in row(text, "full-memory")
    assert "ended by SIGSEGV; what is shown is from a run without profiler windows" in text
    tried = [(windows, log_dir) for _, name, windows, *_, log_dir in jobs if name == "full-memory"]
    assert [windows for windows, _ in tried] == [True, False]
    assert len({log_dir for _, log_dir in tried}) == 2  # else the first one's findings count, too


def test_a_flag_that_is_not_known_there_is_left_out(evidence):
    def picky(name, job):
        if name == "float32" and not tried:
            tried.append(job)
            log = ["F1121 Unknown flag in XLA_FLAGS: --xla_gpu_enable_triton_gemm"]
            return {"error": "ended by SIGABRT", "signal": "SIGABRT", "log": log}
        return answered(TRUE[name])

    tried = []
    code, _, _, jobs = evidence(picky)
    assert code == 0
    flags = [environ.get("XLA_FLAGS") for _, name, _, environ, *_ in jobs if name == "float32"]
    assert "triton" in flags[0] and not flags[1]
    assert all(windows for _, _, windows, *_ in jobs)


def test_without_a_gpu_the_first_answer_is_enough(evidence):
    code, text, _, jobs = evidence(lambda name, job: {"error": "NoGpu: none", "no_gpu": True})
    assert code == 1 and len(jobs) == 1
    assert "0 of 9 verdicts are right" in text and "not run: NoGpu: none" in text


def test_an_interrupt_shows_what_there_is(evidence):
    def interrupted(name, job):
        if name == "slow-input":
            raise KeyboardInterrupt
        return answered(TRUE[name])

    code, text, written, _ = evidence(interrupted)
    assert code == 1 and "2 of 9 verdicts are right" in text
    assert "tiny-kernels: not run: interrupted" in text and len(written["results"]) == 9


def test_what_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(gpu_evidence, "missing", lambda backend: ["keras", backend])
    assert gpu_evidence.main(["--backend", "torch"]) == 2
    assert "pip install keras torch" in capsys.readouterr().err


CALLS = {"nvmlDeviceGetPowerUsage": {"count": 60, "p50_us": 3.0, "p99_us": 9.0, "max_us": 10.0}}
PAIR = {"pairs": 4, "ratio": 1.001, "ratio_p25": 0.99, "ratio_p75": 1.02, "added_us": 12.0, "step_ms": 30.0}


def costs(**parts):
    return {
        "device": {"name": "NVIDIA H200"},
        "step_ms": 30.0,
        "idle": CALLS,
        "loaded": CALLS,
        "1 Hz": PAIR,
        "10 Hz": PAIR,
        "50 Hz": PAIR,
        "windows": PAIR,
        **parts,
    }


def test_costs_are_shown(evidence):
    code, text, written, _ = evidence(lambda name, job: costs(), "--costs")
    assert code == 0 and written["machine"] == MACHINE
    assert "10 Hz     ×1.0010 [0.9900 … 1.0200]  +12.0 µs a step of 30.00 ms, 4 pairs" in text
    [line] = [line for line in text.splitlines() if line.startswith("nvmlDeviceGetPowerUsage")]
    assert line.split()[1:] == ["3.0", "9.0", "3.0", "9.0"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (costs(windows={"error": "CUPTI: no privileges"}), "windows   CUPTI: no privileges"),
        (costs(loaded={"error": "NVMLError: x"}), "loaded: NVMLError: x"),
        ({"idle": CALLS, "error": "ended by SIGSEGV"}, "50 Hz: not measured"),
    ],
)
def test_a_cost_that_is_missing_fails_and_loses_no_other(evidence, answer, said):
    code, text, _, _ = evidence(lambda name, job: answer, "--costs")
    assert code == 1 and said in text and "nvmlDeviceGetPowerUsage" in text
