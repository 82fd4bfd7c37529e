"""What torch dispatches while something is rounded."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Lists the names of the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def count(self, name: str) -> int:
        return sum(one.startswith(name) for one in self.names)
