"""An interruption that loses nothing."""


class Paused(Exception):
    """Says what to type to go on; the command line ends with the code of an interruption."""
