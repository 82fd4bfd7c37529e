"""What the sections of `bench/gpu.py` share: the device, the time that is left, and the lines."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

GIB = 2**30
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


@dataclass
class Line:
    """One thing that was measured: `share` is the value over its target, at most 1 where met."""

    section: str
    name: str
    value: str
    limit: str = ""
    target: str = ""
    share: float | None = None
    failed: bool = False

    def verdict(self, small: bool) -> str:
        if self.failed:
            return "FAILED"
        if self.share is None or small:
            return ""
        return "met" if self.share <= 1 else "MISSED"


@dataclass
class Bench:
    """The device, the shapes, the time that is left, and the lines so far.

    Attributes:
        save: called after every line: what was measured outlives whatever comes next.
    """

    device: torch.device
    small: bool
    end: float
    section: str = ""
    lines: list[Line] = field(default_factory=list)
    save: Callable[[], None] = lambda: None

    def left(self) -> float:
        return self.end - time.monotonic()

    def note(self, text: str, *, failed: bool = False) -> None:
        self.line("", text, failed=failed)

    def line(self, name: str, value: str, **rest: Any) -> None:
        found = Line(self.section, name, value, **rest)
        self.lines.append(found)
        self.save()
        parts = (found.section, name, value, found.limit, found.target, found.verdict(self.small))
        print("  ".join(part for part in parts if part), flush=True)

    def at_most(self, name: str, seconds: float, target: float, limit: str = "") -> None:
        self.line(
            name, f"{seconds:.2f} s", limit=limit, target=f"<= {target} s", share=seconds / target
        )

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, step: Callable[[], Any], rounds: int = 5) -> float:
        """Return the best wall time of a step after a warm-up."""
        step()
        best = float("inf")
        for _ in range(rounds):
            self.wait()
            start = time.perf_counter()
            step()
            self.wait()
            best = min(best, time.perf_counter() - start)
        return best

    @contextmanager
    def watching_memory(self) -> Iterator[Callable[[], float]]:
        """Give a function that returns the most memory so far, in GiB."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            yield lambda: torch.cuda.max_memory_allocated() / GIB
        else:
            yield lambda: 0.0

    def free(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def model(self, shape: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16) -> nn.Module:
        """Make a Llama with random weights on the device itself."""
        torch.manual_seed(0)
        with torch.device(self.device):
            config = LlamaConfig(**(TINY if self.small else shape), dtype=dtype)
            return LlamaForCausalLM(config).to(dtype).eval()

    def ids(self, rows: int, tokens: int) -> Tensor:
        drawn = torch.Generator().manual_seed(1)
        return torch.randint(0, 256, (rows, 64 if self.small else tokens), generator=drawn)


@dataclass(frozen=True)
class Section:
    """What is run, and about how long it takes on an H100, in seconds.

    Those of the larger models are reckoned from what they compute; none is the target.
    """

    run: Callable[[Bench], None]
    seconds: float
