"""Deep Q-learning whose replay calls `predict` and `fit` for each remembered step (keon/deep-q-learning#18).

Right: hundreds of calls of `predict` and `fit` with a single sample each: one `predict` and one `fit` or
`train_on_batch` for the whole minibatch (or `model(x)` instead of `predict`); no advice on a fit's input.
"""

import random
from collections import deque

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, USES = "tensorflow", "predict and fit are called for each remembered sample", "run"


class Cart:
    """A point that is to be kept near the middle."""

    def __init__(self):
        self.state = np.zeros(4, "float32")

    def step(self, action):
        push = 0.1 if action else -0.1
        self.state = np.clip(0.95 * self.state + push + np.random.normal(0, 0.05, 4), -2, 2).astype("float32")
        return self.state, -float(np.abs(self.state).sum())


def train(run):
    random.seed(0)
    np.random.seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(24, activation="relu"),
            keras.layers.Dense(24, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    model.compile("adam", "mse")
    memory, cart = deque(maxlen=2000), Cart()

    def replay(samples):
        for state, action, reward, after in samples:
            target = reward + 0.95 * np.max(model.predict(after[None], verbose=0)[0])
            wanted = model.predict(state[None], verbose=0)
            wanted[0][action] = target
            model.fit(state[None], wanted, epochs=1, verbose=0)

    def replay_at_once(samples):
        states, actions, rewards, afters = (np.array(part) for part in zip(*samples, strict=True))
        wanted = model.predict(states, verbose=0)
        best = model.predict(afters, verbose=0).max(1)
        wanted[np.arange(len(samples)), actions] = rewards + 0.95 * best
        model.fit(states, wanted, epochs=1, verbose=0)

    run.start()
    state = cart.state
    for turn in range(18):
        action = random.randrange(2) if random.random() < 0.3 else int(np.argmax(model.predict(state[None], verbose=0)))
        after, reward = cart.step(action)
        memory.append((state, action, reward, after))
        state = after
        if turn >= 8:
            (replay_at_once if run.does("without") else replay)(random.sample(memory, 8))


if __name__ == "__main__":
    main(train)
