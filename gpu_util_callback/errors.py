"""The one error that people may see: input we cannot use, in one line."""

__all__ = ["UnusableInput"]


class UnusableInput(Exception):
    """Input that cannot be used, said in one line: what is wrong and what to do.

    The command line prints it on stderr and exits with 2; readers collect it per file and go on.
    """
