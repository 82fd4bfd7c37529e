"""Imported first by a server of `forked`: modules by the thousand hold hardly any garbage.

To look for it takes a fifth of the imports. A process that is forked looks again, but not through
what was there before.
"""

import gc
import os


def _look_again() -> None:
    gc.freeze()
    gc.enable()


gc.disable()
os.register_at_fork(after_in_child=_look_again)
