"""The call of a module that is compiled in place, heard from outside.

`module.compile()` compiles the module's hooks with it, where they hear nothing.
"""

from collections.abc import Callable
from typing import Any

from torch import nn


class CompiledCall:
    """Stands in for the compiled call of a module until it is removed."""

    def __init__(
        self,
        module: nn.Module,
        begin: Callable[[nn.Module, Any, dict[str, Any]], None],
        end: Callable[[nn.Module, Any, Any], None],
    ) -> None:
        self.module, self.begin, self.end = module, begin, end
        self.inner: Callable[..., Any] = module._compiled_call_impl  # type: ignore[assignment]
        self.active = True
        module._compiled_call_impl = self

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call what was compiled."""
        if not self.active:
            return self.inner(*args, **options)
        self.begin(self.module, args, options)
        output = None
        try:
            output = self.inner(*args, **options)
        finally:
            self.end(self.module, args, output)
        return output

    def remove(self) -> None:
        """Leave the module as it was, once those that were put on later are removed, too."""
        self.active = False
        while isinstance(top := self.module._compiled_call_impl, CompiledCall) and not top.active:
            self.module._compiled_call_impl = top.inner
