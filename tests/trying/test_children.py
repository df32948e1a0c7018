"""Programs in children: what is timed, what goes wrong, and that nothing is left behind."""

import contextlib
import io
import json
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import fork_server
import pytest

from gpu_util_callback.cli import main
from gpu_util_callback.cli.ab import judged
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.trying.changes import change_of, parse
from gpu_util_callback.trying.children import ChildFailed, Children, Side, Timed, python
from gpu_util_callback.trying.outcomes import outcomes, store
from gpu_util_callback.trying.trial import Trial, measure, sides_of
from gpu_util_callback.trying.working_copy import landlock_rules

FORK_SERVERS = Path(f"/tmp/fork-servers-{os.getuid()}-{fork_server.python('keras')[-2:][0]}")
LOOP = """
import time
from gpu_util_callback import GpuUtilMonitor
with GpuUtilMonitor("logs") as monitor:
    for epoch in range({epochs}):
        for batch in monitor.batches(range({batches})):
            time.sleep({seconds})
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHE_OF_TESTS", str(FORK_SERVERS))  # that children may lock
    return tmp_path


def write(text: str, script: str = "train.py", **values: object) -> str:
    Path(script).write_text(textwrap.dedent(text).format(**values) if values else textwrap.dedent(text))
    return script


def loop(batches: int = 100_000, seconds: float = 0.002, epochs: int = 1) -> str:
    return write(LOOP, batches=batches, seconds=seconds, epochs=epochs)


def timed(script: str, *arguments: str, command=python, **options: object):
    with Children(steps=30, seconds=0.4, **options) as children:
        children.hang_s = 30
        return children.run(Side(command([script, *arguments])))


def forked(module: str, program: list[str]) -> list[str]:
    """Return the command that runs a script where a module is imported; it is changed as one that is imported then."""
    server = fork_server.python(module)
    subprocess.run([*server, "-c", ""], check=True)  # starts it out here, where it can change all files
    return [*server, *program]


def fails(script: str, *arguments: str, hang_s: float = 30) -> ChildFailed:
    with pytest.raises(ChildFailed) as caught, Children(steps=30, seconds=0.4) as children:
        children.hang_s = hang_s
        children.run(Side(python([script, *arguments])))
    assert "\n" not in str(caught.value)
    return caught.value


def processes_with(mark: str) -> list[str]:
    """Return the command lines of the processes that have an argument."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            lines.append(line)
    return lines


# -- what is timed -----------------------------------------------------------------------------------


def test_a_program_is_cut_short_and_leaves_nothing(here):
    result = timed(loop())
    assert result.steps >= 30 and result.ms() >= 2
    assert sorted(path.name for path in here.iterdir()) == ["train.py"]


def tree(folder: Path) -> dict[str, object]:
    """What a folder holds: contents of files, targets of links, by path."""
    paths = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return {str(path): path.readlink() if path.is_symlink() else path.read_bytes() for path in paths}


# What a program may do to files of its working directory, and to new ones.
CHANGES = """
import os, pathlib, shutil, sqlite3, subprocess, tempfile
assert open("../beside/data").read() == "data" and pathlib.Path("runs/best.pt").read_text() == "of yesterday"
open("old.bin", "ab").write(b"more")
subprocess.run("echo in place > new.bin", shell=True, check=True)
os.truncate("runs/best.pt", 0)
shutil.rmtree("runs")
os.makedirs("runs/1/inner")
os.rename("runs/1", "runs/2")
os.remove("latest")
os.symlink("runs/2", "latest")
os.rmdir("empty")
open("../made", "w")
sqlite3.connect("study.db").execute("create table u(x)")
subprocess.run("echo x > runs/2/of-a-command && rm train.py", shell=True, check=True)
pathlib.Path(tempfile.mkdtemp(), "inside").write_text("x")
tempfile.NamedTemporaryFile(delete=False)
"""


HAS_LANDLOCK = landlock_rules([]) is not None
NEEDS_LANDLOCK = pytest.mark.skipif(not HAS_LANDLOCK, reason="a kernel without Landlock")


@pytest.mark.parametrize("has_landlock", [pytest.param(True, marks=NEEDS_LANDLOCK), False])
def test_whatever_a_program_changes_the_files_that_are_there_stay(tmp_path, monkeypatch, has_landlock):
    here = tmp_path / "project"
    for folder in ("runs", "empty", ".git", "../beside", "../temporary"):
        (here / folder).mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    Path("../beside/data").write_text("data")
    Path("runs/best.pt").write_text("of yesterday")
    Path("old.bin").write_text("as it was")
    os.utime("old.bin", (0, 0))
    Path("new.bin").write_text("as it was")
    Path("latest").symlink_to("runs")
    monkeypatch.setattr("gpu_util_callback.trying.working_copy.NEWEST_FILES", 5)  # old.bin is a link
    with contextlib.closing(sqlite3.connect("study.db")) as study:
        study.execute("create table t(x)")
    if not has_landlock:
        monkeypatch.setattr("gpu_util_callback.trying.working_copy.landlock_rules", lambda folders: None)
    write(CHANGES + LOOP, batches=9999, seconds=0.002, epochs=1)
    before = tree(tmp_path)
    assert timed(str(here / "train.py")).steps >= 30
    assert tree(tmp_path) == before and Path("empty").is_dir() and list(Path("../temporary").iterdir()) == []


# How a program changes a file: what is needed for it, and whether that is a file elsewhere.
IN_PLACE = [
    ("import torch\ntorch.save(dict(), '{file}')", "torch"),
    ("import h5py\nh5py.File('{file}', 'a')", "h5py"),
    ("import pyarrow, pyarrow.parquet\npyarrow.parquet.write_table(pyarrow.table(dict(a=[1])), '{file}')", "pyarrow"),
    ("import subprocess\nsubprocess.run('echo x > {file}', shell=True, check=True)", ""),
    ("open('{elsewhere}/new', 'w')", ""),
    ("import os\nos.makedirs('{elsewhere}', exist_ok=True)\nos.remove('{elsewhere}/there')", ""),
]


@NEEDS_LANDLOCK
@pytest.mark.parametrize(("line", "needed"), IN_PLACE)
def test_what_is_written_in_place_or_elsewhere_is_kept_as_it_is(here, monkeypatch, tmp_path_factory, line, needed):
    monkeypatch.setattr("gpu_util_callback.trying.working_copy.NEWEST_FILES", 0)
    if needed:
        pytest.importorskip(needed)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "there").write_text("theirs")
    Path("old.bin").write_text("as it was")
    write(line.format(file="old.bin", elsewhere=elsewhere))
    before = {**tree(here), **tree(elsewhere)}
    assert "only temporary files, caches and its copy" in str(fails("train.py"))
    assert before == {**tree(here), **tree(elsewhere)}


@NEEDS_LANDLOCK
def test_large_files_are_copied_only_if_asked_for(here, monkeypatch):
    monkeypatch.setattr("gpu_util_callback.trying.working_copy.NEWEST_BYTES", 2**26)
    with Path("old.bin").open("wb") as file:
        file.truncate(2**26 + 1)
    Path("old.bin").chmod(0o600)
    text = write("open('old.bin', 'r+b').write(b'x')\n" + LOOP, batches=9999, seconds=0.002, epochs=1)
    assert "/old.bin: only temporary files" in str(fails(text))
    assert timed(text, copy=True).steps >= 30
    monkeypatch.setattr("gpu_util_callback.trying.working_copy.MOST_FILES", 1)  # too many to link: nothing can change
    assert "new: only temporary files" in str(fails(write("open('new', 'w')")))
    monkeypatch.setattr("gpu_util_callback.trying.working_copy.landlock_rules", lambda folders: None)
    monkeypatch.setattr("gpu_util_callback.trying.working_copy.MOST_BYTES", 2**26)
    with pytest.raises(UnusableInput, match="give --copy"):
        timed(text)


def test_checkpoints_and_data_of_tensorflow_are_removed(here):
    pytest.importorskip("tensorflow")
    text = """
import tensorflow as tf
model = tf.Module()
model.v = tf.Variable(1.0)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=model.v), "saved", max_to_keep=1)
manager.save()
manager.save()
tf.saved_model.save(model, "export")
with tf.summary.create_file_writer("events").as_default():
    tf.summary.scalar("a", 1, step=0)
list(tf.data.Dataset.range(3).cache("cached"))
with tf.io.TFRecordWriter("rows.tfrecord") as file:
    file.write(b"x")
"""
    Path("saved").mkdir()
    Path("saved/checkpoint").write_text("model_checkpoint_path: 'of yesterday'")
    write(text + LOOP, batches=100_000, seconds=0.002, epochs=1)
    before = tree(here)
    timed("train.py", command=partial(forked, "tensorflow"))
    assert tree(here) == before


OWN_LOOP = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters())
for step in range(100_000):
    time.sleep(0.002)
    model(torch.zeros(8, 4)).sum().backward()
    optimizer.step()
"""


JAX_LOOP = """
import jax, time
step = jax.jit(jax.grad(lambda w: (w * w).sum()))
w = jax.numpy.ones(4)
while True:
    w = w - 0.1 * step(w)
    time.sleep(0.01)
"""


def test_a_pytorch_loop_without_loader_is_timed(here):
    pytest.importorskip("torch")
    assert timed(write(OWN_LOOP), command=partial(forked, "torch")).steps >= 30


@pytest.mark.parametrize(("framework", "text"), [("torch", OWN_LOOP), ("jax", JAX_LOOP)])
def test_a_loop_that_nothing_sees_does_not_run_to_its_end(here, tmp_path_factory, framework, text):
    pytest.importorskip(framework)
    with pytest.raises(ChildFailed, match="nothing sees the steps of its own loop"), Children(30, 0.4) as children:
        children.record([write(text)], tmp_path_factory.mktemp("recorded"), 0.5)


def test_a_training_in_a_process_that_is_started_is_told_from_an_own_loop(here, tmp_path_factory):
    pytest.importorskip("jax")
    write(JAX_LOOP, "inner.py")
    text = "import subprocess, sys\nsubprocess.run([sys.executable, 'inner.py'])"
    with pytest.raises(ChildFailed, match="in a process that it starts"), Children(30, 0.4) as children:
        children.record([write(text)], tmp_path_factory.mktemp("recorded"), 0.5)


def test_who_waits_for_a_step_is_told_what_can_be_tried(here, monkeypatch):
    monkeypatch.setattr("gpu_util_callback.trying.children.QUIET_S", 0.3)
    said = []
    with Children(steps=30, seconds=0.4) as children:
        children.say = said.append
        children.run(Side(python([write("import time\ntime.sleep(1)\n" + LOOP, batches=999, seconds=0.002, epochs=1)])))
    assert len(said) == 1 and said[0].startswith("no training step so far, after 0 s: `fit` of Keras")


def test_what_imports_no_framework_is_ended_soon(here, monkeypatch, tmp_path_factory):
    monkeypatch.setattr("gpu_util_callback.trying.children.BARE_S", 0.5)
    assert "imported no framework in 0 s: `fit` of Keras" in str(fails(write("import time\ntime.sleep(60)")))
    with Children(steps=30, seconds=0.4) as children, pytest.raises(ChildFailed, match="imported no framework"):
        children.record([write("import time\ntime.sleep(60)")], tmp_path_factory.mktemp("recorded"), 30.0)


def test_what_reads_an_answer_is_told_that_there_is_none(here):
    assert "reads its standard input" in str(fails(write("name = input()\n")))


def test_a_program_of_fewer_steps_than_asked_is_timed_as_far_as_it_goes(here):
    result = timed(loop(batches=24))
    assert 8 <= result.steps < 24


def test_short_epochs_are_timed_as_a_whole(here):
    result = timed(loop(batches=10, epochs=1000))
    assert result.epochs * 10 == result.steps >= 30


def test_time_between_epochs_is_no_step(here):
    text = LOOP.replace("for batch in", "time.sleep(0.1)\n        for batch in")
    slow = timed(write(text, batches=10, seconds=0.002, epochs=1000))
    assert slow.ms() < 8  # 12 with the tenth of a second


def test_whole_epochs_count_all_that_an_epoch_takes(here):
    text = LOOP.replace("for batch in", "time.sleep(0.1)\n        for batch in")
    slow = timed(write(text, batches=10, seconds=0.002, epochs=1000), epochs=2)
    assert slow.epochs >= 2 and slow.ms(between=True) > 11 and slow.ms() < 8


def test_several_trainings_of_a_program_are_one(here):
    result = timed(
        write("for fit in range(500):\n" + textwrap.indent(LOOP, "    "), batches=6, seconds=0.002, epochs=1)
    )
    assert result.steps >= 30


# -- what goes wrong ---------------------------------------------------------------------------------


def test_a_short_training_before_is_warm_up(here):
    """A fit of 5 steps, then epochs longer than the trial: of these the first is timed, and not waited for."""
    text = """
    import keras, numpy, time
    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 9999
        def __getitem__(self, i):
            time.sleep(0.002)
            return numpy.zeros((4, 4)), numpy.zeros(4)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.fit(Rows(), steps_per_epoch=5, verbose=0)
    model.fit(Rows(), verbose=0)
    """
    result = timed(write(text), command=partial(forked, "keras"))
    assert result.steps >= 30 and result.ms() < 100


def test_the_next_training_of_a_pytorch_program_is_timed_too(here):
    """Another dataset for each of its epochs, of ten steps."""
    text = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for rows in [TensorDataset(torch.zeros(160, 4)) for epoch in range(999)]:
        for x, in DataLoader(rows, batch_size=16):
            model(x).sum().backward()
            optimizer.step()
    """
    result = timed(write(text), command=partial(forked, "torch"))
    assert result.steps >= 30 and result.epochs >= 3


def test_no_training(here):
    failed = fails(write("print('hello')"))
    assert "without a training step" in str(failed) and failed.output == "hello"


def test_arguments_of_the_program_that_are_refused(here):
    failed = fails(write("import argparse\nargparse.ArgumentParser().parse_args()"), "--epocs", "3")
    assert "its arguments are not accepted (exit code 2)" in str(failed) and "--epocs" in failed.output


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("get_ipython().system('ls')", "it was a notebook"),
        # As profilers of TensorFlow and JAX end that write elsewhere.
        ("raise OSError('PERMISSION_DENIED: /a/b; Permission denied')", "it changes /a/b: only temporary files"),
    ],
)
def test_what_an_error_means(here, line, says):
    assert says in str(fails(write(line)))


def test_arguments_are_the_programs_own(here):
    result = timed(
        write("import sys\nassert sys.argv[1:] == ['--fix', '3']\n" + LOOP, batches=9999, seconds=0.002, epochs=1),
        "--fix",
        "3",
    )
    assert result.steps >= 30


def test_an_exit_within(here):
    assert "exit code 7" in str(fails(write("import sys\nsys.exit(7)")))
    assert "3 steps" in str(
        fails(write(LOOP + "            if batch == 3: raise SystemExit(3)", batches=50, seconds=0.002, epochs=1))
    )


def test_an_error_after_steps_is_no_measurement(here):
    failed = fails(write(LOOP + "\nraise RuntimeError('after 200')", batches=200, seconds=0.0005, epochs=1))
    assert failed.code == 1 and "RuntimeError: after 200" in failed.output


def test_an_interrupt_within(here):
    assert "interrupted" in str(fails(write("raise KeyboardInterrupt")))


def test_a_port_in_use(here):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        failed = fails(write("import socket\nsocket.create_server(('127.0.0.1', {port}))", port=port))
    assert "a port that is in use" in str(failed)


def test_gpu_memory_that_another_process_holds(here):
    failed = fails(write("raise RuntimeError('CUDA error: out of memory. CUDA out of memory. Tried to allocate')"))
    assert "the GPU has no memory for it" in str(failed)


def test_spawned_processes_without_a_guard(here):
    text = "import multiprocessing as m\nhelper = m.get_context('spawn').Process(target=print)\nhelper.start()\n"
    failed = fails(write(text + "helper.join()\nraise SystemExit(1)"))
    assert 'outside of `if __name__ == "__main__":`' in str(failed)


def test_processes_of_its_own_are_ended_with_it(here):
    """A helper, and one that left its session as a daemon does."""
    text = """
    import subprocess, sys
    for alone in (False, True):
        code = "import time; time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", code, "left-{mark}"], start_new_session=alone)
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    timed(write(text + textwrap.indent(LOOP, "    "), mark=mark, batches=9999, seconds=0.002, epochs=1))
    assert processes_with(f"left-{mark}") == []


def test_a_training_in_the_background_or_cut_off_is_told_from_none(here):
    assert "in the background" in str(fails(write(LOOP + "\nimport os\nos._exit(0)", batches=4, seconds=0, epochs=1)))


def test_a_training_in_a_process_of_the_program_is_timed(here):
    text = (
        "import multiprocessing as m\ndef train():\n" + textwrap.indent(LOOP, "    ") + "\nif __name__ == '__main__':\n"
    )
    text += "    p = m.get_context('{how}').Process(target=train); p.start(); p.join()"
    for how in ("fork", "spawn"):
        assert timed(write(text, how=how, batches=99999, seconds=0.002, epochs=1)).steps >= 30


def test_several_processes_that_train_together(here, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "several processes train together (torchrun)" in str(fails(loop()))


def test_a_program_that_hangs_is_ended(here):
    failed = fails(write("print('waiting', flush=True)\nimport time\ntime.sleep(60)"), hang_s=1.0)
    assert "was ended after 1 s" in str(failed) and failed.output == "waiting"


def test_a_change_that_meets_no_call_is_no_result(here):
    with pytest.raises(ChildFailed, match="never makes the call"), Children(steps=30, seconds=0.4) as children:
        children.run(Side(python([loop()]), parse("workers=8").for_child()))


def test_a_sitecustomize_of_the_environment_is_still_run(here, monkeypatch):
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text("import builtins\nbuiltins.of_the_site = 3")
    monkeypatch.setenv("PYTHONPATH", str(here / "site"))
    assert timed(write("assert of_the_site == 3\n" + LOOP, batches=9999, seconds=0.002, epochs=1)).steps >= 30


# -- the command -------------------------------------------------------------------------------------


def command(*arguments: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "gpu_util_callback", *arguments], capture_output=True, text=True, timeout=120, **more
    )


def called(*arguments: str) -> subprocess.CompletedProcess:
    """What a command does in this process, with nothing on its standard input."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, Path(os.devnull).open() as nothing:
        for name, stream in (("stdin", nothing), ("stdout", out), ("stderr", err)):
            patched.setattr(sys, name, stream)
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse
            code = ended.code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize(
    "options, says", [([], "` 8 to 20 times in turns"), (["--pairs", "2-2", "--steps", "1"], "` 4 times in turns")]
)
def test_the_command_says_what_it_will_run_and_asks(here, options, says):
    done = called("try", "--change", "workers=8", *options, loop())
    assert done.returncode == 2 and says in done.stderr and "--yes" in done.stderr
    assert f"for {'1 step' if options else '200 steps'} after 20" in done.stderr


def test_a_program_is_not_recorded_either_before_somebody_agrees(here):
    done = called("try", write("open('began', 'w')"))
    assert done.returncode == 2 and "will record 20 s of it" in done.stderr and "--yes" in done.stderr
    assert not Path("began").exists()


def test_a_loop_that_cannot_be_recorded_is_told_from_one_that_cannot_be_timed(here):
    done = called("try", "--yes", write("print(1)"))
    assert done.returncode == 2 and "say with --change what to try" in done.stderr


@pytest.mark.parametrize("patch", ["x = = 1", "import no_such_module", "raise SystemExit"])
def test_a_patch_that_fails_is_no_trial(here, patch):
    Path("patch.py").write_text(patch)
    done = called("try", "--yes", "--patch", "patch.py", loop(), "--steps", "20")
    assert done.returncode == 2 and "patch.py failed: " in done.stderr and not done.stdout


def test_an_outcome_is_printed_before_it_is_kept(here):
    write(LOOP, "before.py", batches=9999, seconds=0.004, epochs=1)
    commands = [f"{sys.executable} before.py"] * 2
    done = called("ab", *commands, *SHORT, "--junit", "absent/ab.xml")
    assert done.returncode == 2 and "Its steps take" in done.stdout and "cannot write absent/ab.xml" in done.stderr


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--change", "speed=9", "train.py"], "speed alone names no call"),
        (["--change", "workers=8", "absent.py"], "there is no absent.py"),
        (["--change", "workers=8", "train.ipynb"], "make a script of it"),
        (["--pairs", "9-4", "--change", "workers=8", "train.py"], "from 2 to 200 pairs, not '9-4'"),
        (["--steps", "0", "--change", "workers=8", "train.py"], "from 1 on, got '0'"),
        (["--seconds", "nan", "--change", "workers=8", "train.py"], "got 'nan'"),
        (["--fix", "0", "train.py"], "from 1 on, got '0'"),
        (["--change", "", "train.py"], "there is no line to try"),
        (["--change", "workers=", "train.py"], "no line of Python"),
        (["--change", "workers=8"], "nothing to run"),
        (["-m"], "nothing to run"),
        (["--patch", "absent.py", "train.py"], "no such file"),
    ],
)
def test_what_cannot_be_tried_is_one_line(here, arguments, says):
    loop()
    done = called("try", "--yes", *arguments)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("what", [["--patch", "patch.py"], []])
def test_ctrl_c_in_a_terminal_ends_all_and_leaves_nothing(here, what, tmp_path_factory):
    """Pressed three times, during a pair and during the recording, while the program does not mind SIGTERM."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    text = """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "left-{mark}"])
    open("made", "w")
    time.sleep(60)
    """
    write(text, mark=mark)
    write("", "patch.py")
    temporary = tmp_path_factory.mktemp("temporary")
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TMPDIR"] = str(temporary)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it
        os.execv(sys.executable, [sys.executable, "-m", "gpu_util_callback", "try", "--yes", *what, "train.py"])
    until = time.monotonic() + 60
    while not processes_with(f"left-{mark}") and time.monotonic() < until:
        time.sleep(0.05)
    for _ in range(3):
        os.write(terminal, b"\x03")
        time.sleep(0.2)
    said = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while part := os.read(terminal, 4096):
            said += part
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130, said
    assert said.decode().splitlines()[-1] == "gpu-util: interrupted: all that it started is ended, and removed"
    assert processes_with(mark) == [] and list(temporary.iterdir()) == []
    assert sorted(path.name for path in here.iterdir()) == ["patch.py", "train.py"]


# -- a trial -----------------------------------------------------------------------------------------


def test_a_patch_is_measured_and_told(here):
    Path("patch.py").write_text("import time\nsleep = time.sleep\ntime.sleep = lambda s: sleep(s / 4)")
    command_ = python([loop(seconds=0.02)])
    trial = Trial("patch.py")
    with Children(steps=20, seconds=0.3) as children:
        said: list[str] = []
        sides = Side(command_), Side(command_, patch=str(here / "patch.py"))
        measure(trial, sides, children.run, (2, 4), said.append)
    assert said[0].startswith("pair 1: ") and said[0].endswith(" left") and not said[-1].endswith(" left")
    ratio = trial.estimate
    assert ratio.resolved and 2 < ratio.ratio < 5 and ratio.low > 1
    assert "patch.py: 2" in trial.sentence() and "pairs of" in trial.sentence()
    store(here, "input_bound", trial.to_json())
    outcome = outcomes(here)["input_bound"]
    assert outcome["ratio"] == pytest.approx(ratio.ratio, abs=1e-3) and outcome["text"].startswith("Tried: ×")


def test_no_change_is_said_with_what_more_pairs_would_tell(here):
    command_ = python([loop(seconds=0.004)])
    trial = Trial("nothing")
    with Children(steps=20, seconds=0.2) as children:
        measure(trial, (Side(command_), Side(command_)), children.run, (3, 3))
    text = trial.sentence()
    assert trial.estimate.resolved or ("no change resolved: ×" in text and "3 %" in text)


def test_variables_of_the_environment_are_a_change():
    change = parse("TF_GPU_THREAD_MODE=gpu_private python train.py")
    assert sides_of(change, ["python"])[1].environment == {"TF_GPU_THREAD_MODE": "gpu_private"}


SHUFFLED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
order = torch.Generator().manual_seed({seed})
x = torch.randn(4096, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if __name__ == "__main__":
    for epoch in range(99):
        for rows, in DataLoader(TensorDataset(x), batch_size=64, shuffle=True, generator=order):
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
WHOLE_BATCHES = "loader = DataLoader(loader.dataset, sampler=loader.batch_sampler, batch_size=None)"


def test_a_seeded_shuffle_stays_the_same(here):
    pytest.importorskip("torch")
    orders = {seed: write(SHUFFLED, f"order{seed}.py", seed=seed) for seed in (1, 2)}
    sides = {
        change: sides_of(parse(change), forked("torch", [orders[1]]))[1] for change in (WHOLE_BATCHES, "num_workers=1")
    }
    with Children(steps=20, seconds=0.3) as children:
        plain, other = (children.run(Side(forked("torch", [script]))) for script in orders.values())
        for change, side in sides.items():
            trial = Trial(change)
            trial.first, trial.second = [plain], [children.run(side)]
            assert trial.differences().startswith("Losses equal."), change
    trial.second = [other]
    assert trial.differences().startswith("Losses differ")


def test_a_callback_is_left_out(here):
    text = """
    import os, keras, numpy
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with open("/dev/shm/{mark}", "a") as file:
                file.write(".")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.fit(numpy.zeros((960, 4)), numpy.zeros(960), batch_size=16, verbose=0, callbacks=[Slow()])
    """
    called = Path(f"/dev/shm/left-out-{os.getpid()}")
    try:
        with Children(steps=1000, seconds=30.0) as children:
            change = {"target": "without", "args": {}, "of": "Slow"}
            assert children.run(Side(forked("keras", [write(text, mark=called.name)]), change)).steps > 20
        assert not called.exists()
    finally:
        called.unlink(missing_ok=True)


def test_rare_validation_is_weighed_as_in_a_whole_training(here):
    """A validation of 0.4 s in every fourth epoch is 0.1 s an epoch, though two or three epochs are timed."""
    text = """
    import keras, numpy, time
    class Waits(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            time.sleep(0.4)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    x = numpy.zeros((160, 4))
    model.fit(x, x[:, 0], validation_data=(x, x[:, 0]), epochs=40, batch_size=16, verbose=0, callbacks=[Waits()])
    """
    change = parse("validation_freq=4")
    with Children(steps=1000, seconds=1.0, epochs=change.epochs) as children:
        result = children.run(Side(forked("keras", [write(text)]), change.for_child()))
    assert result.epochs >= 3 and 0.09 < result.between_s / result.epochs < 0.2


@pytest.mark.parametrize(
    "line, calls",
    [
        ("ds = ds.cache()  # behind map(read) + batch, before shuffle and repeat", {"read": 32, "check": 48}),
        ("ds = ds.cache()  # behind from_generator, before shuffle and repeat", {"make": 1, "read": 96}),
        ("ds = ds.cache()  # behind generator, before shuffle and repeat", {"make": 1, "read": 96}),
        ("held = held.cache()  # validation data, as its last step", {"read": 96, "check": 16}),
    ],
)
def test_a_cache_is_put_behind_the_stage_that_is_named(here, line, calls):
    """How often a pass of the generator begins, and the functions of training and validation are called."""
    text = """
    import atexit, collections, json, keras, numpy as np, tensorflow as tf
    calls = collections.Counter()
    atexit.register(lambda: open("/dev/shm/{mark}", "w").write(json.dumps(calls)))
    def counted(name, x):
        def count(x):
            calls[name] += 1
            return x
        x = tf.numpy_function(count, [x], tf.float32)
        x.set_shape([4])
        return x, tf.reduce_sum(x)
    def read(x):
        return counted("read", x)
    def check(x):
        return counted("check", x)
    def make():
        calls["make"] += 1
        for i in range(32):
            yield np.full(4, i, "float32")
    rows = tf.data.Dataset.from_generator(make, output_signature=tf.TensorSpec([4]))
    held = tf.data.Dataset.from_tensor_slices(np.zeros((16, 4), "float32")).map(check).batch(8)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.fit(rows.map(read).batch(8), validation_data=held, epochs=3, verbose=0)
    """
    pytest.importorskip("tensorflow")
    counted = Path(f"/dev/shm/cached-{os.getpid()}")
    change = change_of(line)
    try:
        with Children(steps=1000, seconds=60.0) as children:
            children.run(Side(forked("keras", [write(text, mark=counted.name)]), change.for_child()))
        seen = json.loads(counted.read_text())
        assert {name: seen[name] for name in calls} == calls
    finally:
        counted.unlink(missing_ok=True)


# -- two commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit, batches, seconds, between_s, code, says",
    [
        ("50", 10, 0.004, 0.08, 1, "pairs of "),  # what passes between epochs makes it slower
        ("900", 9999, 0.012, 0, 0, "No epoch's end was timed"),
    ],
)
def test_two_commands_are_compared_for_a_merge(here, limit, batches, seconds, between_s, code, says):
    text = LOOP.replace("for batch in", "time.sleep({between_s})\n        for batch in")
    for script, step_s, pause_s in (("before.py", 0.004, 0), ("after.py", seconds, between_s)):
        write(text, script, batches=batches, seconds=step_s, epochs=9999 // batches, between_s=pause_s)
    commands = [f"{sys.executable} before.py", f"{sys.executable} after.py"]
    options = ["--pairs", "3-4", "--steps", "20", "--seconds", "0.3", "--max-slowdown", limit, "--junit", "ab.xml"]
    done = command("ab", *commands, "--yes", *options, env=os.environ | {"GITHUB_STEP_SUMMARY": "summary.md"})
    assert done.returncode == code and says in done.stdout, done.stderr
    assert f'failures="{code}"' in Path("ab.xml").read_text() and says in Path("summary.md").read_text()


SHORT = ["--yes", "--pairs", "2-2", "--steps", "20", "--seconds", "0.2"]


def test_what_computes_with_something_else_is_not_comparable(here):
    text = "import sys, types\nmodule = types.ModuleType('torch')\nsys.modules['{name}'] = module\n" + LOOP
    for name in ("torch", "jax"):
        write(text, f"{name}_.py", name=name, batches=9999, seconds=0.002, epochs=1)
    commands = [f"{sys.executable} torch_.py", f"{sys.executable} jax_.py"]
    done = command("ab", *commands, *SHORT, "--pairs", "2-8", "--junit", "ab.xml")
    assert done.returncode == 3 and "framework: jax, before torch" in done.stdout, done.stderr
    assert "pair 1" in done.stderr and "pair 2" not in done.stderr, "the first pair shows it"
    assert 'errors="1"' in Path("ab.xml").read_text()
    assert command("ab", *commands, *SHORT, "--allow-different").returncode in (0, 1)


# What a training of each kind states its batch size by.
BATCHES = {
    "monitor": """
        import time
        from gpu_util_callback import GpuUtilMonitor
        class Data(list):
            batch_size = {size}
        with GpuUtilMonitor("logs") as monitor:
            for batch in monitor.batches(Data(range(9999))):
                time.sleep(0.002)
        """,
    "loader": """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for x, in DataLoader(TensorDataset(torch.zeros(9999, 4)), batch_size={size}):
            model(x).sum().backward()
            optimizer.step()
        """,
    "arrays": """
        import keras, numpy
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.fit(numpy.zeros((9999, 4)), numpy.zeros(9999), batch_size={size}, verbose=0)
        """,
    "tf.data": """
        import keras, tensorflow as tf
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
        x = tf.zeros((9999, 4))
        model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch({size}).prefetch(2), verbose=0)
        """,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_the_batch_size_is_among_what_has_to_be_equal(here, kind):
    command_ = (
        python if kind in ("monitor", "arrays") else partial(forked, {"loader": "torch", "tf.data": "keras"}[kind])
    )
    assert timed(write(BATCHES[kind], size=16), command=command_).set_up["batch size"] == "16"


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ([1.0, 1.01, 0.99, 1.0], [1.2, 1.19, 1.21, 1.2], "failure"),
        ([1.0, 1.01, 0.99, 1.0], [1.02, 1.03, 1.01, 1.02], "passed"),  # slower, by less than 5 %
        ([1.0, 1.3, 0.8, 1.1], [1.1, 0.9, 1.2, 1.1], "skipped"),
    ],
)
def test_a_limit_is_broken_kept_or_not_resolved(first, second, outcome):
    def side(seconds_a_step):
        return [Timed(100 * s, 0.0, 100, 0, {}, None, None, {}, 1.0) for s in seconds_a_step]

    found, sentence = judged(Trial("", first=side(first), second=side(second)), 5.0, [])
    assert found == outcome and ("more pairs would" in sentence) == (outcome == "skipped")


@pytest.mark.parametrize(("unresolved", "code"), [("pass", 0), ("fail", 1)])
def test_what_the_pairs_do_not_resolve_passes_or_fails_as_asked(here, monkeypatch, unresolved, code):
    def measure(trial, *_):
        for side, ms in ((trial.first, [1.0, 1.3, 0.8, 1.1]), (trial.second, [1.1, 0.9, 1.2, 1.1])):
            side += [Timed(s, 0.0, 1000, 0, {}, None, None, {}, 1.0) for s in ms]

    monkeypatch.setattr("gpu_util_callback.cli.ab.measure", measure)
    assert main(["ab", "a", "b", "--yes", "--unresolved", unresolved, "--junit", "ab.xml"]) == code
    assert ("<failure" if code else "<skipped") in Path("ab.xml").read_text()


def test_where_nothing_ends_all_processes_of_a_program_it_says_so(here, monkeypatch, capsys):
    monkeypatch.delattr(os, "killpg")  # Windows
    assert main(["ab", "python a.py", "python b.py", "--yes"]) == 2
    assert "Linux and macOS" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "first, says",
    [
        ("no-such-program a", "no-such-program does not start: No such file"),
        ("./folder", "./folder does not start: Permission denied"),
        ("python 'a.py", "No closing quotation"),
        ("", "give two commands"),
    ],
)
def test_a_command_that_cannot_be_run(here, first, says):
    Path("folder").mkdir()
    done = called("ab", first, "python b.py", "--yes")
    assert done.returncode == 2 and says in done.stderr.splitlines()[-1]
