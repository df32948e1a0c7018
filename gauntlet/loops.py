"""Training loops of one's own: TensorFlow, JAX and PyTorch."""

from __future__ import annotations

import itertools
import tempfile

from gauntlet.helpers import compute, jax, keras, mlp, np, rows, sleep_ms, tf, torch
from gauntlet.registry import INPUT, program

EAGER = r"eager|tf\.function|jit|compile"


def _tape_step(model, compiled=True):
    loss_function = keras.losses.BinaryCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return tf.function(step) if compiled else step


def _in_memory(count=6400, width=8):
    return tf.data.Dataset.from_tensor_slices(rows(count, width)).batch(16).cache().prefetch(2)


@program(
    "every operation of the step is started by Python",
    "without:compiled",
    EAGER,
    cures={"compiled": r"@tf\.function|tf\.function\("},
)
def tape_eager(run):
    model, data = mlp(8, layers=6), _in_memory(1280)
    step = _tape_step(model, compiled=run.does("compiled"))
    with run.monitor() as monitor:
        for _ in range(3):
            for x, y in monitor.batches(data):
                step(x, y)
    return model


@program("nothing: a compiled step, batches in memory", "model", None)
def tape_compiled(run):
    model, data = mlp(8, layers=4, units=512), _in_memory()
    step = _tape_step(model)
    with run.monitor() as monitor:
        for epoch in range(3):
            for x, y in monitor.batches(data):
                loss = step(x, y)
            print(epoch, float(loss))
    return model


@program(
    "a numpy_function waits, one call at a time",
    "input",
    INPUT,
    cures={"calls": r"num_parallel_calls=(\d+|tf)", "cached": r"\.cache\(\)"},
)
def tape_starved(run):
    def read(x, y):
        def waits(values):
            sleep_ms(2)
            return values

        return tf.ensure_shape(tf.numpy_function(waits, [x], tf.float32), (8,)), y

    calls = run.number(tf.data.AUTOTUNE) if run.does("calls") else None
    data = tf.data.Dataset.from_tensor_slices(rows(480, 8)).map(read, num_parallel_calls=calls)
    data = (data.cache() if run.does("cached") else data).batch(16)
    if run.does("calls") and run.number(0):
        options = tf.data.Options()
        options.threading.private_threadpool_size = run.number(0)
        data = data.with_options(options)
    model = mlp(8)
    step = _tape_step(model)
    with run.monitor() as monitor:
        for _ in range(5):
            for x, y in monitor.batches(data):
                step(x, y)
    return model


@program(
    "the step is traced again for every new Python number",
    "without:tensor",
    r"recompilation|retrac",
    cures={"tensor": r"tf\.constant|[Tt]ensor|shape"},
)
def tape_retraced(run):
    model, data = mlp(8), _in_memory(480)
    inner = _tape_step(model, compiled=False)

    @tf.function
    def step(x, y, number):
        return inner(x, y) / tf.cast(number + 1, tf.float32)

    with run.monitor() as monitor:
        for number, (x, y) in enumerate(monitor.batches(data)):
            step(x, y, tf.constant(number) if run.does("tensor") else number)
    return model


@program(
    "samples compute in Python, in the loop", "input", INPUT, backend="torch", cures={"workers": r"num_workers=(\d+)"}
)
def torch_loop(run):
    x, y = rows(640, 8)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            compute(50_000)
            return x[i], y[i]

    workers = run.number(2) if run.does("workers") else 0
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=workers, persistent_workers=workers > 0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with run.monitor() as monitor:
        for _ in range(3):
            for features, labels in monitor.batches(loader):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(features), labels)
                loss.backward()
                optimizer.step()
    return [one.detach().numpy() for one in model.parameters()]


def _jax_step(layers, compiled):
    def loss(parameters, x, y):
        for weights in parameters[:-1]:
            x = jax.numpy.tanh(x @ weights)
        return ((x @ parameters[-1] - y) ** 2).mean()

    def step(parameters, x, y):
        gradients = jax.grad(loss)(parameters, x, y)
        return [w - 0.01 * g for w, g in zip(parameters, gradients, strict=True)]

    keys = np.random.default_rng(0)
    sizes = [8, *[256] * layers, 1]
    parameters = [
        jax.numpy.asarray(keys.normal(size=pair, scale=0.05), "float32") for pair in itertools.pairwise(sizes)
    ]
    return (jax.jit(step) if compiled else step), parameters


def _jax_loop(run, compiled, batches):
    x, y = rows(16 * batches, 8)
    step, parameters = _jax_step(6, compiled)
    with run.monitor() as monitor:
        for _ in range(4):
            slices = ((x[i : i + 16], y[i : i + 16]) for i in range(0, len(x), 16))
            for features, labels in monitor.batches(slices):
                parameters = step(parameters, features, labels)
            parameters[0].block_until_ready()
    return parameters


@program("nothing: a compiled step, batches in memory", "model", None, backend="jax", harmful="Thread|Process")
def jax_loop(run):
    return _jax_loop(run, True, 1500)


@program(
    "every operation of the step is started by Python",
    "without:compiled",
    EAGER,
    backend="jax",
    cures={"compiled": r"jax\.jit"},
)
def jax_eager(run):
    return _jax_loop(run, run.does("compiled"), 60)


@program(
    "the environment, which Python computes between the steps",
    "without:cheap",
    r"outside|between|input|environment|loop|not named|Python",
    nothing=True,
    harmful="validation|recompil",
)
def policy_gradient(run):
    model = mlp(8, outputs=2)
    step, choose = _tape_step(model), tf.function(model)
    rng, state = np.random.default_rng(0), np.zeros((1, 8), "float32")
    with run.monitor() as monitor:
        for _ in range(40):
            states, returns = [], []
            for _ in range(32):  # an episode
                compute(10_000 if run.does("cheap") else 80_000)
                action = int(np.argmax(choose(state)[0]))
                state = (0.9 * state + rng.normal(size=(1, 8)) + action).astype("float32")
                states.append(state)
                returns.append([1.0, 0.0] if action else [0.0, 1.0])
            with monitor.step():
                step(np.concatenate(states), np.array(returns, "float32"))
    return model


@program(
    "model.predict is called for each action, in a loop",
    "without:called",
    r"predict",
    cures={"called": r"model\(|predict_on_batch|tf\.function"},
    harmful="pad|shape|steps_per_execution",
)
def dqn_loop(run):
    model = mlp(8, outputs=2)
    step, choose = _tape_step(model), tf.function(model)
    state = np.zeros((1, 8), "float32")
    with run.monitor() as monitor:
        for _ in range(90):
            for _ in range(1):
                values = choose(state) if run.does("called") else model.predict(state, verbose=0)
                state = np.roll(state, 1) + np.float32(np.argmax(values))
            with monitor.step():
                step(np.repeat(state, 16, 0), np.zeros((16, 2), "float32"))
    return model


@program(
    "the loop evaluates in every fiftieth step, unmarked",
    "without:seldom",
    r"Long steps",
    harmful=r"cache|\.map\(|compile",
)
def evaluates_in_steps(run):
    model, data = mlp(8, layers=4, units=256), _in_memory(9600)
    x, y = rows(12_000, 8)
    step = _tape_step(model)
    with run.monitor() as monitor:
        for number, batch in enumerate(monitor.batches(data)):
            step(*batch)
            if number % (600 if run.does("seldom") else 50) == 49:
                model.evaluate(x, y, batch_size=64, verbose=0)
    return model


@program(
    "the loop writes histograms of all weights in each step",
    "without:seldom",
    r"tf\.summary",
    cures={"seldom": r"% 100 == 0"},
    harmful=EAGER,
)
def logs_in_steps(run):
    model, data = mlp(8, layers=4, units=64), _in_memory(4800)
    step, folder = _tape_step(model), tempfile.mkdtemp()
    with run.monitor() as monitor, tf.summary.create_file_writer(folder).as_default():
        for number, batch in enumerate(monitor.batches(data)):
            step(*batch)
            if not run.does("seldom") or number % 100 == 0:
                for at, weights in enumerate(model.trainable_variables):
                    tf.summary.histogram(f"weights_{at}", weights, number)
    return model
