"""Serve a log directory with TensorBoard on loopback and say where to look."""

import re
import signal
import subprocess
import sys
from pathlib import Path

READY = re.compile(r"at (http://[^ ]+?)/? ")


def serve(log_dir: Path) -> int:
    """Run TensorBoard until Ctrl-C, print the tab's URL once it answers; returns an exit code."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(log_dir)]
    server = subprocess.Popen([*command, "--host", "127.0.0.1"], stderr=subprocess.PIPE, text=True, bufsize=1)
    # Without this, a SIGTERM (of `timeout`, of a supervisor) would leave TensorBoard running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    said: list[str] = []
    try:
        for line in server.stderr:
            said.append(line)
            ready = READY.search(line)
            if ready:
                print(f"\nOpen {ready[1]}/#gpu_utilization   (Ctrl-C ends it)", flush=True)
        print("TensorBoard ended by itself:\n" + "".join(said[-5:]), file=sys.stderr)
        return server.wait() or 1
    except KeyboardInterrupt:
        print()
        return 0
    finally:
        server.terminate()
        server.wait(10)
