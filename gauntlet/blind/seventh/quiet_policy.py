"""Policy gradients with JAX: 256 simulated carts go 64 steps within one compiled `lax.scan`, and a second compiled
function learns from them; the mean reward is printed after each update, and every twentieth the policy is tried
without chance. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the simulation is part of the method and compiled, the
reward that is printed is one number an update, and the trials are seldom and short.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "", "monitor"
NOISE = "the reward is printed after each update, and every twentieth the policy is tried on 64 carts"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    sizes = (4, 128, 128, 2)
    weights = [generator.normal(0, 0.2, pair).astype("float32") for pair in itertools.pairwise(sizes)]
    optimizer = optax.adam(1e-3)
    memory = optimizer.init(weights)

    def policy(weights, states):
        for one in weights[:-1]:
            states = jnp.tanh(states @ one)
        return states @ weights[-1]

    def move(states, actions):
        place, speed, angle, turn = states.T
        push = 2.0 * actions - 1
        turn = turn + 0.02 * (9.8 * jnp.sin(angle) - push * jnp.cos(angle))
        speed = speed + 0.02 * push
        states = jnp.stack([place + 0.02 * speed, speed, angle + 0.02 * turn, turn], 1)
        return states, jnp.cos(states[:, 2]) - 0.1 * states[:, 0] ** 2

    @jax.jit
    def play(weights, states, key):
        def one(states, key):
            actions = jax.random.categorical(key, policy(weights, states))
            after, reward = move(states, actions)
            return after, (states, actions, reward)

        return jax.lax.scan(one, states, jax.random.split(key, 64))[1]

    @jax.jit
    def learn(weights, memory, states, actions, rewards):
        returns = jnp.cumsum(rewards[::-1], 0)[::-1]
        worth = (returns - returns.mean(1, keepdims=True)) / (returns.std() + 1e-6)

        def loss_of(weights):
            chances = jax.nn.log_softmax(policy(weights, states))
            return -(jnp.take_along_axis(chances, actions[..., None], -1)[..., 0] * worth).mean()

        updates, memory = optimizer.update(jax.grad(loss_of)(weights), memory)
        return optax.apply_updates(weights, updates), memory, rewards.mean()

    @jax.jit
    def tried(weights, states):
        def one(states, _):
            return move(states, policy(weights, states).argmax(1))

        return jax.lax.scan(one, states, None, 64)[1].mean()

    key = jax.random.key(0)
    with run.monitor() as monitor:
        for update in monitor.batches(range(160)):
            key, first, second = jax.random.split(key, 3)
            played = play(weights, 0.05 * jax.random.normal(first, (256, 4)), second)
            weights, memory, reward = learn(weights, memory, *played)
            if run.does("without"):
                continue
            print(f"update {update}: reward {float(reward):.3f}")
            if update % 20 == 19:
                print(f"tried: {float(tried(weights, 0.05 * jax.random.normal(first, (64, 4)))):.3f}")
        reward.block_until_ready()


if __name__ == "__main__":
    main(train)
