"""Which calls of an input's function are timed: their mean holds whatever the order of slow and quick ones."""

import concurrent.futures.process
import dis
import functools
import itertools
import multiprocessing
import os
import random
import threading
import time
from types import SimpleNamespace

import pytest

from gpu_util_callback.backends import input_calls, inputs
from gpu_util_callback.backends.input_calls import CallTimer
from gpu_util_callback.steps import frames


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only in the timed function; its nanoseconds so far."""
    clock = SimpleNamespace(ns=0)
    times = SimpleNamespace(perf_counter_ns=lambda: clock.ns, thread_time_ns=lambda: clock.ns)
    monkeypatch.setattr(input_calls, "time", times)
    monkeypatch.setattr(input_calls, "core_s", lambda pid, threads: (1.0, 0.0))
    return clock


def facts_of(clock, calls: int, each: int, first: int) -> dict:
    """Facts of a function that takes 10 ms in every `each`th call and 1 µs in the others."""
    timer, number = CallTimer("read"), 0

    def read():
        clock.ns += 10_000_000 if number % each == first % each else 1_000

    timed = timer.around(read)
    for _ in range(calls):
        number += 1
        timed()
    return timer.facts()


@pytest.mark.parametrize("each", range(2, 20))
def test_slow_calls_at_even_distances_are_among_those_that_are_timed(clock, each):
    """A generator that opened a file for every tenth batch: 27 ms were estimated of 630 ms."""
    for first in range(1, each + 1):
        estimated = facts_of(clock, 4000, each, first)["wall_ms"]
        assert 0.5 <= estimated / (10 / each) <= 2, first


def test_one_call_in_sixteen_is_timed_and_the_users_random_numbers_stay(clock):
    before = random.getstate()
    facts = facts_of(clock, 16 * 600, 1, 1)
    assert (facts["calls"], facts["timed"]) == (9600, 16 + 599)
    assert facts["wall_ms"] == 10 == facts["cpu_ms"]
    assert random.getstate() == before


def test_a_few_long_calls_are_listed_with_what_they_were_asked_for_and_left_out_of_the_mean(clock):
    timer = CallTimer("read")

    def read(index):
        clock.ns += 6_000_000_000 if index in (100, 301) else 5_000_000

    timed = timer.around(read)
    for index in range(400):
        timed(index)
        if index % 150 == 0:
            timer.facts()  # as the recorder asks now and then
    facts = timer.facts()
    assert [(call["call"], call["at"], call["ms"]) for call in facts["long"]] == [(101, 100, 6000), (302, 301, 6000)]
    assert (facts["wall_ms"], facts["long_ms"]) == (5, 12_000)


def test_long_calls_that_are_not_few_count_in_the_mean(clock):
    timer = CallTimer("read")
    timed = timer.around(lambda slow: setattr(clock, "ns", clock.ns + (1_000_000_000 if slow else 5_000_000)))
    for number in range(400):
        timed(number % 10 == 9)
    facts = timer.facts()
    assert "long" not in facts and 50 < facts["wall_ms"] < 200


def test_the_end_of_an_epoch_is_sampled_and_has_no_number_of_calls():
    calls, inside, leave = input_calls.InputCalls(), threading.Event(), threading.Event()

    class Pairs:
        use_multiprocessing = False

        def __getitem__(self, number):
            return number

        def on_epoch_end(self):
            inside.set()
            leave.wait(30)

    adapter = type("PyDatasetAdapter", (), {"py_dataset": Pairs(), "enqueuer": None})()
    calls.begin()
    input_calls.time_fit(calls, adapter, None, lambda batch: None)
    thread = threading.Thread(target=adapter.py_dataset.on_epoch_end)
    thread.start()
    assert inside.wait(30)
    calls.sample()
    leave.set()
    thread.join()
    calls.end()
    [entry] = calls.facts()
    assert (entry["name"], entry["part"], entry["samples"]) == ("Pairs.on_epoch_end", "epoch_end", 1)
    assert "calls" not in entry and "timed" not in entry, "they are not counted"


def test_a_call_s_line_and_the_library_that_it_calls_are_sampled():
    """From a thread of its own: what `__getitem__` and a generator are in, and what else runs is left out."""
    calls, inside, leave = input_calls.InputCalls(), threading.Barrier(4), threading.Event()

    class Samples:
        def __getitem__(self, number):
            return [wait(row) for row in range(1)]

    def wait(row):
        return inside.wait(30), leave.wait(30)  # one line, as in `hold` below

    def batches():
        yield wait(0)

    calls.begin()
    get, made = input_calls._method(calls, Samples(), "__getitem__"), batches()
    timed = input_calls._timed(made, calls.timer(*input_calls._next_of(made)))
    threads = [threading.Thread(target=target) for target in (lambda: get(1), lambda: next(timed), lambda: wait(0))]
    for thread in threads:
        thread.start()
    inside.wait(30)
    for _ in range(3):
        calls.sample()
    leave.set()
    for thread in threads:
        thread.join()
    calls.end()
    calls.sample()
    facts = {entry["name"]: entry for entry in calls.facts()}
    assert set(facts) == {"Samples.__getitem__", "batches"}
    for entry in facts.values():
        assert (entry["samples"], entry["in_line"]) == (3, 3)
        assert entry["line"].startswith("wait (test_timed_calls.py, line ")
        assert "library" not in entry, "what Python itself is made of is none"


def test_of_a_stack_the_innermost_line_of_the_program_counts_and_the_library_below():
    def frame(file, name):
        return compile(repr(file), file, "eval").replace(co_qualname=name, co_name=name), 7

    timer = CallTimer("Samples.__getitem__")
    read = frame("/env/lib/python3.11/site-packages/h5py/_hl/dataset.py", "Dataset.__getitem__")
    rows = frame("/home/me/data.py", "Samples.__getitem__.<locals>.<listcomp>")
    get = frame("/home/me/data.py", "Samples.__getitem__")
    for stack in ([read, read, rows, get], [read, rows, get], [rows, get], [get]):
        timer.sample(stack)
    entry = timer.facts()
    assert (entry["line"], entry["in_line"]) == ("Samples.__getitem__ (data.py, line 7)", 4)
    assert (entry["library"], entry["in_library"], entry["samples"]) == ("h5py", 2, 4)


@pytest.fixture(scope="module")
def parts():
    """Samples of loaders whose parts each hold the training thread until they were looked at."""
    torch = pytest.importorskip("torch")
    inside, leave = threading.Barrier(2), threading.Event()

    def hold():
        # One line: the first look may come before the barrier lets this thread go.
        return inside.wait(30), leave.wait(30)

    class Drawn(torch.utils.data.Sampler):
        def __iter__(self):
            hold()
            yield from range(4)

        def __len__(self):
            return 4

    class Pairs(Drawn):
        def __init__(self):
            self.sampler = torch.utils.data.SequentialSampler(range(4))

        def __iter__(self):
            hold()
            yield from ([0, 1], [2, 3])

    class Around:
        def __init__(self, loader):
            self.loader = loader

        def __iter__(self):
            for batch in self.loader:
                hold()
                yield batch

    def join(samples):
        hold()
        return samples

    class Held(list):
        def __getitem__(self, at):
            if not leave.is_set():
                hold()
            return super().__getitem__(at)

    class Asks(torch.utils.data.Sampler):
        def __init__(self, data):
            self.data = data

        def __iter__(self):
            yield from sorted(range(4), key=self.data.__getitem__)

    class Buckets(Asks):
        def __iter__(self):
            yield [at for at in range(4) if self.data[at] > 2]

    class Set(torch.utils.data.IterableDataset):
        def __iter__(self):
            hold()
            return iter(range(4))

    held = Held([1, 2, 3, 4])

    def sampled(wrap=None, data=(1, 2, 3, 4), **given):
        leave.clear()
        loader = torch.utils.data.DataLoader(data, **given)
        dataset = wrap(loader) if wrap else loader
        calls = input_calls.InputCalls()
        calls.begin()
        calls.sample_loader(dataset, loader)
        iterator = threading.Thread(target=lambda: next(input_calls.timed_iterator(calls, dataset, iter(dataset))))
        iterator.start()
        inside.wait(30)
        for _ in range(3):
            calls.sample()
        leave.set()
        iterator.join()
        calls.end()
        return {entry.get("part"): entry for entry in calls.facts() if entry.get("samples")}

    return {
        "collate_fn": ("join", sampled(collate_fn=join)),
        "sampler": ("Drawn.__iter__", sampled(sampler=Drawn())),
        "batch_sampler": ("Pairs.__iter__", sampled(batch_sampler=Pairs())),
        "wrapper": ("Around.__iter__", sampled(wrap=Around)),
        "sampler that asks for items": ("Asks.__iter__", sampled(data=held, sampler=Asks(held))),
        "batch_sampler that asks for items": ("Buckets.__iter__", sampled(data=held, batch_sampler=Buckets(held))),
        "set-up": ("Set.__iter__", sampled(data=Set())),
    }


ASKS = " that asks for items"


@pytest.mark.parametrize(
    "part", ["collate_fn", "sampler", "batch_sampler", "wrapper", "sampler" + ASKS, "batch_sampler" + ASKS, "set-up"]
)
def test_what_a_loader_calls_beside_its_dataset_is_sampled(parts, part):
    """Seen: a sampler that asked for each label, in each pass; the samples named the dataset's items."""
    name, sampled = parts[part]
    part = None if part == "set-up" else part.removesuffix(ASKS)
    assert set(sampled) == {part}, "and nothing else was met"
    entry = sampled[part]
    assert (entry["name"], entry["samples"], entry["in_line"]) == (name, 3, 3)
    assert entry["line"].startswith("hold (test_timed_calls.py, line ") or ".hold (" in entry["line"]


def node(kind: str, source=None, **attributes):
    return type(kind, (), {"source": source, **attributes})()


@pytest.mark.parametrize(
    ("pipeline", "workers"),
    [
        (node("Batcher", node("Mapper")), 0),
        (node("Batcher", node("ParallelMapper", num_workers=3, method="process")), 3),
        (node("Prefetcher", node("ParallelMapper", node("IterableWrapper"), num_workers=2, method="thread")), 2),
    ],
)
def test_a_loader_of_torchdata_s_nodes_is_one_with_the_workers_of_its_nodes(pipeline, workers):
    loader = type("Loader", (), {"__module__": "torchdata.nodes.loader", "root": pipeline})()
    facts = inputs.describe_input(loader)
    assert facts["input_kind"] == "torchdata nodes"
    assert facts["input_workers"] == workers


def test_torchdata_s_own_loader_is_known():
    nodes = pytest.importorskip("torchdata.nodes")
    mapped = nodes.ParallelMapper(nodes.IterableWrapper(range(9)), abs, num_workers=2, method="thread")
    facts = inputs.describe_input(nodes.Loader(nodes.Batcher(mapped, 3)))
    assert (facts["input_kind"], facts["input_workers"]) == ("torchdata nodes", 2)


def test_a_line_that_waits_for_a_lock_is_noted_as_one():
    def item(lock):
        with lock:
            return 1

    timer, code = CallTimer("item"), item.__code__
    for line in (1, 1, 2):
        timer.sample([(code, code.co_firstlineno + line)])
    assert timer.facts()["slow"] == "lock"
    for _ in range(3):
        timer.sample([(code, code.co_firstlineno + 2)])
    assert "slow" not in timer.facts()


SOURCE = """
def batches():
    for rows in splits:
        some = x[rows]  #
        yield some, y[rows]  #
    with self.lock:  # lock
        pass
    for i in rows:
        xs.append(x[i])  # rows xs.append
        total += x[i]  # rows
        xs.append(load(paths[i]))  # - xs.append load
        out = np.concatenate([out, x[i : i + 1]])  # grow np.concatenate
        crop = x[i, top : top + 8]  #
        for row in range(8):
            crop[row] = x[i, top + row]  # rows
    pictures = np.stack([load(paths[i]) for i in rows])  # - np.stack load
    wide = np.concatenate([wide, wide[:, ::-1]])  # - np.concatenate
    some = rng.choice(10, 5, replace=False)  # draw rng.choice
    return torch.stack(
        [x[i] for i in rows]  # rows torch.stack
    )
"""


def test_why_a_statement_is_slow_is_read_from_its_source(tmp_path):
    path = tmp_path / "strangers.py"
    path.write_text(SOURCE)
    names: dict = {}
    exec(compile(SOURCE, path, "exec"), names)
    for number, line in enumerate(SOURCE.splitlines(), 1):
        _, marked, expected = line.partition("  #")
        if marked:
            slow, called = input_calls.read_statement(names["batches"].__code__, number)
            assert [slow or "-" * bool(called), called] == [*expected.strip().partition(" ")[::2]], line


TABLES = """\
class Rows:
    def __getitem__(self, i):
        table = pandas.read_csv(self.files[i])
        values = table[["x", "y"]].to_numpy()  # 3 read_csv
        return values - values.mean(0)  #
    def kept(self, i):
        row = self.table.iloc[i]  #
        return row["x"]  #
    def parts(self, i):
        frame = self._load(self.files[i])
        return frame.x.to_numpy(), pl.read_parquet(i)["y"]  # 11 read_parquet
    def through(self, i):
        frame = self._load_table(self.files[i])
        for name in ("x", "y"):
            frame[name] = frame[name] / 2  # 13 _load_table
"""


def test_a_table_is_read_where_its_function_makes_it_of_a_file(tmp_path):
    """Seen: of a file that each sample parses, samples met the next line, which takes columns of it."""
    path = tmp_path / "tables.py"
    path.write_text(TABLES)
    names: dict = {}
    exec(compile(TABLES, path, "exec"), names)
    codes = [function.__code__ for function in vars(names["Rows"]).values() if hasattr(function, "__code__")]
    for number, line in enumerate(TABLES.splitlines(), 1):
        _, marked, expected = line.partition("  #")
        code = next((code for code in reversed(codes) if code.co_firstlineno <= number), codes[0])
        if marked:
            found = input_calls.table_read_by(code, number)
            assert (f"{found[1]} {found[0]}" if found else "") == expected.strip(), line


def test_of_a_library_s_own_dataset_the_package_that_it_calls_is_sampled():
    """Seen: Keras' DirectoryIterator, of which nothing more was known than that it computes in Python."""
    timer = CallTimer("DirectoryIterator.__getitem__")

    def frame(file, name):
        return compile(repr(file), file, "eval").replace(co_qualname=name, co_name=name), 7

    packages = "/env/lib/python3.11/site-packages"
    load = frame(f"{packages}/keras/src/utils/image_utils.py", "load_img")
    get = frame(f"{packages}/keras/src/legacy/preprocessing/image.py", "DirectoryIterator.__getitem__")
    resize = frame(f"{packages}/PIL/Image.py", "Image.resize")
    for stack in ([resize, load, get], [resize, load, get], [load, get]):
        timer.sample(stack)
    entry = timer.facts()
    assert (entry["called"], entry["samples"]) == ("PIL.Image.resize", 3) and "line" not in entry


@pytest.mark.parametrize(
    ("inner", "called", "library"),
    [
        (["_call_unconverted", "converted_call"], "tensorflow.converted_call", "tensorflow"),  # or in C
        (["numpy/linalg/_linalg.py svd", "_call_unconverted", "converted_call"], "numpy.svd", "numpy"),
        (["is_unsupported", "converted_call"], "tensorflow.converted_call", "tensorflow"),
    ],
)
def test_autograph_is_at_work_only_where_nothing_else_is(tmp_path, inner, called, library):
    """Seen: a nested function that called NumPy, "where AutoGraph has rewritten it: each of its calls takes longer"."""
    path = tmp_path / "train.py"
    path.write_text("lambda v: (time.sleep(0.004), v)[1]\n")
    own = compile(path.read_text(), str(path), "exec").replace(co_name="decode", co_qualname="decode")
    autograph = "/env/lib/python3.11/site-packages/tensorflow/python/autograph/impl/api.py"
    stack = []
    for frame in inner:
        file, _, name = frame.rpartition(" ")
        file = f"/env/lib/python3.11/site-packages/{file}" if file else autograph
        stack.append((compile("pass", file, "exec").replace(co_name=name, co_qualname=name), 7))
    timer = CallTimer("decode")
    for _ in range(3):
        timer.sample([*stack, (own, 1)])
    entry = timer.facts()
    assert (entry["called"], entry.get("library")) == (called, library)


def test_what_a_line_calls_is_sampled_with_the_model_that_it_is_in():
    torch = pytest.importorskip("torch")
    inner, model = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4))
    stacks = []

    def seen(*_):
        stacks.append(frames.stacks_in({batch.__code__}))

    def batch(module):
        return module(torch.zeros(2, 4))

    inner.register_forward_hook(lambda *_: looks())
    model[1].register_forward_hook(lambda *_: looks())

    def looks():
        look = threading.Thread(target=seen)
        look.start()
        look.join()

    for module, slow in ((model, "model"), (inner, None)):
        timer = CallTimer("batch")
        stacks.clear()
        batch(module)
        for stack in stacks[0]:
            at = next(at for at, (code, _) in enumerate(stack) if "torch" in code.co_filename)
            timer.sample(stack[at:])
        facts = timer.facts()
        assert facts.get("slow") == slow and facts["library"] == "torch"
        assert facts["line"].startswith("test_what_a_line_calls") or facts["line"].startswith("batch (")


def test_where_threads_take_turns_at_an_instruction_without_a_line_the_line_before_counts():
    """Seen: a loop whose body ends in an `if` was mostly at "line 0", and its kind of work was not known."""

    def number(letters, numbers, row):
        for place, letter in enumerate(letters):
            if letter in numbers:
                row[place] = numbers[letter]

    turns = [
        step.offset
        for step in dis.get_instructions(number)
        if step.positions.lineno is None and "BACKWARD" in step.opname
    ]
    assert turns, "CPython gives the jump no line"
    first = number.__code__.co_firstlineno
    assert {frames._line_before(number.__code__, turn) for turn in turns} == {first + 3}


def drawn_by_workers(torch, calls=None, **given):
    """Return what two workers draw, and the input's functions that were met meanwhile."""

    met = multiprocessing.get_context("fork").Event()

    class Drawn(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, at):
            met.wait(60)
            return at + torch.rand(()) + random.random()

    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(Drawn(), num_workers=2, multiprocessing_context="fork", **given)
    done, looks = threading.Event(), []

    def look():
        while not done.wait(0.01):
            calls.sample()
            if any(entry["name"] == "Drawn.__getitem__" for entry in calls.facts()):
                met.set()
                return  # later looks would meet the lines after it

    if calls is None:
        met.set()
    else:
        calls.begin()
        calls.sample_loader(loader, loader)
        looks = [threading.Thread(target=look)]
        looks[0].start()
    drawn = torch.cat(list(loader))
    done.set()
    for thread in looks:
        thread.join()
        calls.end()
    assert loader.worker_init_fn is given.get("worker_init_fn"), "put back"
    return drawn


def test_the_line_that_worker_processes_are_at_counts_for_the_wait_for_them(tmp_path):
    torch = pytest.importorskip("torch")
    calls = input_calls.InputCalls()

    def begin(worker):
        (tmp_path / str(worker)).touch()

    drawn = drawn_by_workers(torch, calls, worker_init_fn=begin)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"], "the program's own function is called"
    assert torch.equal(drawn, drawn_by_workers(torch)), "the workers draw the same"
    entries = {entry["name"]: entry for entry in calls.facts()}
    sampled = entries["Drawn.__getitem__"]
    assert sampled["in_line"] == sampled["samples"] > 0 and sampled["called"].startswith("multiprocessing.")
    assert sampled["line"].startswith("Drawn.__getitem__ (test_timed_calls.py, line ")


def test_workers_that_are_spawned_send_their_stacks_until_nobody_reads_them():
    address = input_calls._stack_socket(os.getpid()).getsockname()
    begin = functools.partial(input_calls.begin_worker, None, address)
    works = concurrent.futures.process._process_worker.__code__
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn, initializer=begin) as pool:
        while not (stacks := list(input_calls._sent_stacks({works}))):
            pool.submit(time.sleep, 0.01).result(60)
        assert all(stack[-1][0] is works for stack in stacks)
    input_calls._send_stacks("\0gpu-util-nobody", threading.get_ident(), works)


def test_several_functions_of_one_package_are_named_by_the_package():
    timer = CallTimer("Samples.__getitem__")
    get = compile("0", "/home/me/data.py", "eval").replace(co_qualname="Samples.__getitem__", co_name="__getitem__"), 7
    for name in ("ZipFile.__init__", "ZipFile.read", "_EndRecData"):
        timer.sample([(compile("0", "/usr/lib/python3.11/zipfile.py", "eval").replace(co_qualname=name), 1), get])
    assert timer.facts()["called"] == "zipfile."


def test_a_sampler_of_the_library_s_own_is_sampled_as_well():
    """Seen: drawing three million weighted rows took 4 s at the start of each pass, and nothing was named."""
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 4, 4)
    loader = torch.utils.data.DataLoader([1, 2, 3, 4], sampler=sampler)
    calls = input_calls.InputCalls()
    calls.sample_loader(loader, loader)
    assert calls._codes[type(sampler).__iter__.__code__].name == "WeightedRandomSampler.__iter__"
    assert calls._codes[type(sampler).__iter__.__code__].part == "sampler"


@pytest.mark.parametrize("kept", [lambda batches: batches, lambda batches: lambda: batches], ids=["3.6", "3.15"])
def test_a_generator_is_timed_as_keras_keeps_it(kept):
    """Seen: the iterator of Keras 3.6 was replaced by a function, which ended the fit."""
    given = (number for number in range(5))
    made = [next(given), next(given)]
    adapter = type("GeneratorDataAdapter", (), {})()
    adapter._first_batches, adapter.generator = made, kept(itertools.chain(made, given))
    calls = input_calls.InputCalls()
    calls.begin()
    input_calls.time_fit(calls, adapter, given, lambda batch: batch)
    batches = adapter.generator
    assert list(batches() if callable(batches) else batches) == [0, 1, 2, 3, 4]
    assert callable(batches) == callable(kept([]))
