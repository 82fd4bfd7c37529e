"""The errors of layerlab: what a user can mend, what was interrupted, what does not exist."""

INTERRUPTION = "interrupted; nothing was written"
TERMINATION = "terminated; nothing was written"


def describe_install(extra: str) -> str:
    """Return what to type for the packages of an extra, while nothing is on PyPI."""
    return f"in a copy of the repository type: pip install '.[{extra}]'"


class UserError(Exception):
    """An error that a user can mend: what was given, what was expected, what to type, in a line."""


class Interrupted(Exception):
    """An interruption that loses nothing; it says what to type to go on.

    Attributes:
        code: with which the command line ends: 128 and the number of the signal.
    """

    def __init__(self, text: str, code: int = 130) -> None:
        super().__init__(text)
        self.code = code


class NotApplicable(Exception):
    """Reason why a quantity does not exist for this model: a result, printed after 'because'."""


class DamageWarning(UserWarning):
    """Damage to a kept file, which then does not count; the message is one line."""
