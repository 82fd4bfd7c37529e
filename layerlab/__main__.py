"""`python -m layerlab` and the installed command `layerlab`."""

import sys


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    from layerlab.cli import app, plainly

    sys.exit(plainly(app))


if __name__ == "__main__":
    main()
