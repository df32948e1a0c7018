"""A callback that posts the loss to the team's dashboard after each batch (a "live chart" snippet).

Right: `on_train_batch_end` of the program's callback waits for a web server: post every n-th batch, at the epoch's end
or from another thread; nothing about the input.
"""

import subprocess
import sys
import urllib.request

from gauntlet.blind import main
from gauntlet.helpers import keras, rows

BACKEND, CAUSE = "jax", "a callback posts the loss after each batch to a server that answers in 20 ms"
REMEDY = "post every 50th batch"
SERVER = """
import http.server, time
class Chart(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.02)
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Chart)
print(server.server_port, flush=True)
server.serve_forever()
"""


def train(run):
    x, y = rows(6400, 60)
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((60,)), *layers, keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/metrics"

    class Dashboard(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if run.does("plain") or batch % 50 == 0:
                urllib.request.urlopen(url, f'{{"batch": {batch}, "loss": {logs["loss"]}}}'.encode()).close()

    callbacks = [] if run.does("without") else [Dashboard()]
    try:
        model.fit(x, y, batch_size=128, epochs=6, verbose=0, callbacks=callbacks + run.callbacks)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(train)
