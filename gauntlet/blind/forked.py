"""A process that has imported a framework and forks for each training: `python -m gauntlet.blind.forked keras`.

Each line of standard input is the module of a program, a variant and a number of ranks; what it prints comes back, then
`ended [STATUS, ...]`. On a busy machine imports take longer than most of the trainings.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback


def main() -> None:
    """Serve until standard input ends."""
    for framework in sys.argv[1:]:
        importlib.import_module(framework)
    for line in sys.stdin:
        module, variant, ranks = line.split()
        started = [_fork(module, variant, rank, int(ranks)) for rank in range(int(ranks))]
        print("ended", [os.waitpid(pid, 0)[1] for pid in started], flush=True)


def _fork(module: str, variant: str, rank: int, ranks: int) -> int:
    """Train in a fork, as one of so many ranks; return its process id."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        if ranks > 1:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(20000 + os.getppid() % 10000),
            }
        sys.argv = [module, variant]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
