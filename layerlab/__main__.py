"""`python -m layerlab` and the installed command `layerlab`."""

import gc
import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType

from layerlab.errors import INTERRUPTION, TERMINATION

# Modules by the thousand are imported, among which hardly anything is garbage: with the 700 objects
# of Python between two looks, a short command spends a tenth of its time on looking.
OBJECTS = 10_000
STOPS = [getattr(signal, one) for one in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, one)]
USUAL = (signal.SIG_DFL, signal.default_int_handler)


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
    # A background job of a shell does not hear the first, nor one of nohup the last.
    usual = {one: former for one in STOPS if (former := signal.getsignal(one)) in USUAL}
    for number in usual:
        signal.signal(number, _leave)
    # Threads that wait must sleep: where they spin, a second program on the same cores slows this
    # one down by far more than its share (measured: 3 times on two cores).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        # What a terminal of ASCII has no character for stands there as a question mark.
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")
    from layerlab.cli.app import app
    from layerlab.console.ending import run_app

    for number, former in usual.items():
        signal.signal(number, former)
    code = run_app(app)
    for number in usual:  # what was asked for is done
        signal.signal(number, lambda *_: os._exit(code))
    gc.disable()  # all memory goes back at once
    sys.exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once, with a line: an import that is interrupted would be a traceback."""
    try:
        word = INTERRUPTION if number == signal.SIGINT else TERMINATION
        sys.stderr.write(f"layerlab: {word}\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    main()
