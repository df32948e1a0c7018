"""One program of the gauntlet as a script of its own: `python gauntlet/as_script.py NAME`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gauntlet.child import Run
from gauntlet.registry import load

if __name__ == "__main__":
    import keras

    keras.utils.set_random_seed(7)
    load()[sys.argv[1]].train(Run(log_dir="logs"))
