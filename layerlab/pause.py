"""An interruption that loses nothing."""


class Paused(Exception):
    """Says what to type to go on.

    Attributes:
        code: with which the command line ends: 128 and the number of the signal.
    """

    def __init__(self, text: str, code: int = 130) -> None:
        super().__init__(text)
        self.code = code
