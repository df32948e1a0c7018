"""`python -m gpu_util_callback`: the command line where `gpu-util` is not on the PATH."""

import sys

from gpu_util_callback.cli import main

if __name__ == "__main__":
    sys.exit(main())
