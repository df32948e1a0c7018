"""A thread that waits for the learner's orders by asking, without a pause (actors and evaluators of reinforcement
learning).

Right: the step waits for the GIL, which a thread of the program holds, at `watch`: let it block in `queue.get()` (or
sleep between its questions), or be a process; that the step itself or Python takes the time, with the thread named, is
right too; nothing about the input.
"""

import queue
import threading

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "a thread polls a queue without a pause and holds the GIL", "monitor"


def train(run):
    torch.manual_seed(0)
    orders, over = queue.Queue(), threading.Event()

    def watch():
        while not over.is_set():
            try:
                order = orders.get(timeout=0.2) if run.does("without") else orders.get_nowait()
            except queue.Empty:
                continue
            order["checked"] = sum(weight.sum().item() for weight in order["weights"])

    seen = torch.rand(12800, 24)
    data = torch.utils.data.TensorDataset(seen, torch.randint(0, 4, (12800,)), torch.rand(12800))
    loader = torch.utils.data.DataLoader(data, batch_size=256, shuffle=True)
    actor = torch.nn.Sequential(torch.nn.Linear(24, 128), torch.nn.Tanh(), torch.nn.Linear(128, 4))
    critic = torch.nn.Sequential(torch.nn.Linear(24, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, 3e-4)
    thread = threading.Thread(target=watch, daemon=True)
    with run.monitor() as monitor:
        thread.start()
        for _ in range(20):
            for state, action, reward in monitor.batches(loader):
                value = critic(state)[:, 0]
                chosen = torch.log_softmax(actor(state), 1).gather(1, action[:, None])[:, 0]
                loss = (value - reward).pow(2).mean() - (chosen * (reward - value.detach())).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            orders.put({"weights": [weight.detach().clone() for weight in parameters]})
        over.set()
        thread.join()


if __name__ == "__main__":
    main(train)
