"""A first program with flax and optax: a `TrainState`, `value_and_grad` and `apply_gradients`, all as in the guide but
one line, and slower than the same network elsewhere; the GPU is at 4 %.

Right: the whole step (forward, gradients and the optimizer's update) runs operation by operation, outside of
`jax.jit`: put it into one jitted function; not the input (rows of an array in memory), not larger batches first of
all, and not the printed loss.
"""

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "the training step is not under jax.jit", "monitor"


def train(run):
    import optax
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class Network(nn.Module):
        @nn.compact
        def __call__(self, digits):
            hidden = nn.relu(nn.Conv(12, (3, 3), strides=(2, 2))(digits))
            hidden = nn.relu(nn.Conv(24, (3, 3), strides=(2, 2))(hidden))
            hidden = nn.relu(nn.Dense(64)(hidden.reshape(len(hidden), -1)))
            return nn.Dense(10)(nn.LayerNorm()(hidden))

    generator = np.random.default_rng(0)
    digits, kinds = generator.random((32 * 60, 28, 28, 1), "float32"), generator.integers(0, 10, 32 * 60)
    network = Network()
    weights = network.init(jax.random.key(0), digits[:1])["params"]
    state = TrainState.create(apply_fn=network.apply, params=weights, tx=optax.adam(1e-3))

    def train_step(state, digit, kind):
        def loss_of(weights):
            scores = state.apply_fn({"params": weights}, digit)
            return optax.softmax_cross_entropy_with_integer_labels(scores, kind).mean()

        loss, slopes = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=slopes), loss

    if run.does("without"):
        train_step = jax.jit(train_step)
    with run.monitor() as monitor:
        for epoch in range(3):
            order = generator.permutation(len(digits)).reshape(-1, 32)
            for rows in monitor.batches(order):
                state, loss = train_step(state, digits[rows], kinds[rows])
            print(f"epoch {epoch}: {float(loss):.3f}")


if __name__ == "__main__":
    main(train)
