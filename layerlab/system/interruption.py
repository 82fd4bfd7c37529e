"""A run of tasks that is told to stop: it ends at once and in words, what is finished is kept."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from layerlab.errors import Interrupted
from layerlab.system.signals import hear

# What schedulers send, and Slurm before the end of a job's time; Windows lacks the last. Python
# itself hears ctrl-c.
HEARD = ("SIGTERM", "SIGUSR1")


@contextmanager
def hear_interruptions(kept: Path) -> Iterator[None]:
    """An interruption in words.

    Args:
        kept: where finished tasks are.

    Raises:
        Interrupted: it was interrupted; its code is 128 and the number of the signal.
    """
    try:
        with ExitStack() as stack:
            for name in HEARD:
                stack.enter_context(hear(name))
            yield
    except (KeyboardInterrupt, SystemExit) as stop:
        code = getattr(stop, "code", None)
        raise Interrupted(
            f"interrupted; what is finished is kept in {kept}: type the same command to go on",
            code if isinstance(code, int) else 128 + signal.SIGINT,
        ) from None
