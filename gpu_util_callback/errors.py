"""The error for input that cannot be used."""

from gpu_util_callback.redaction import without_secrets


class UnusableInput(Exception):
    """Input that cannot be used, with one line on the problem and the remedy.

    The command line prints it on stderr and exits with 2; readers collect it per file and go on.
    Where a store fails it is raised `from None`: the store's own error may hold a password.

    Attributes:
        output: the last lines of a program that failed, shown below the problem.
    """

    def __init__(self, problem: str, output: str = ""):
        super().__init__(without_secrets(problem))
        self.output = output
