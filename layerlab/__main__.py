"""`python -m layerlab` and the installed command `layerlab`."""

import os
import sys


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    # Threads that wait must sleep: where they spin, a second program on the same cores slows this
    # one down by far more than its share (measured: 3 times on two cores).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from layerlab.cli.app import app
    from layerlab.cli.ending import run_app

    sys.exit(run_app(app))


if __name__ == "__main__":
    main()
