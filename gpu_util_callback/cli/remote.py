"""Log directories in object stores: a timely error for one that is unreachable or denies access."""

import logging
import re

from gpu_util_callback import daemon
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.storage import is_remote, storage_for

# A store answers within a second or two; without credentials its library queries metadata servers
# that do not exist, for minutes. Python may take 10 s for a name that cannot be resolved.
ANSWER_S = 20.0

# Schemes of a store -> how to log in there.
_LOGIN = {
    ("gs", "gcs"): "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a "
    "key file",
    ("s3", "s3a"): "log in with `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL for a store that is not Amazon's)",
    ("az", "abfs", "abfss", "adl"): "set AZURE_STORAGE_CONNECTION_STRING",
}


def wait_for_answer(logdir: str, timeout_s: float = ANSWER_S, longer: str = "") -> None:
    """Wait until the store of a log directory has answered; return at once for a local one.

    Does not check that the directory exists: its reader or writer finds out.

    Args:
        longer: a sentence on how to wait longer, where that is possible.
        timeout_s: seconds to wait.

    Raises:
        UnusableInput: it is a web address, cannot be opened or did not answer in time; with the remedy.
    """
    if re.match(r"https?://", logdir):
        raise UnusableInput(
            f"{logdir} is a web address: give the log directory itself, the one that "
            "`tensorboard --logdir` was started with"
        )
    if not is_remote(logdir):
        return
    # Its warnings repeat our error; with a handler of its own they do not reach the terminal.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())

    def ask() -> None:
        storage, root = storage_for(logdir)
        storage.names(root)

    scheme = logdir.partition("://")[0]
    answer = daemon.begin(ask, "gpu-util-remote")
    try:
        answer.result(timeout_s)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except Exception as error:
        if not answer.done():  # no answer in time
            raise UnusableInput(
                f"no answer from {scheme}:// within {timeout_s:g} s ({logdir}): is this machine "
                f"online, and logged in there?{_login_advice(scheme)}{longer}"
            ) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "" if isinstance(error, ImportError) else _login_advice(scheme)
        raise UnusableInput(f"{logdir} cannot be opened: {reason.rstrip('.')}.{hint}") from None


def _login_advice(scheme: str) -> str:
    store = scheme.rpartition("::")[2].lower()
    return next((f" To do so, {advice}." for schemes, advice in _LOGIN.items() if store in schemes), "")
