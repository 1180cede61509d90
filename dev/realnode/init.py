"""PID 1 of an engine's namespaces: collects orphans, and takes everything with it when it ends.

A program of its own, of the standard library. It prints `ready` and waits for SIGTERM; the kernel then kills
all that runs in its PID namespace. It starts nothing: others enter the namespaces with nsenter.
"""

import contextlib
import os
import signal


def main() -> None:
    """Until SIGTERM."""
    awaited = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    print("ready", flush=True)
    while signal.sigwait(awaited) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
