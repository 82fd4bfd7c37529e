"""Live progress of runs on standard error, a line each; plain lines without a terminal."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from layerlab.console.display import Display
from layerlab.console.tables import printable
from layerlab.console.throughput import Throughput
from layerlab.console.units import amount, duration

BAR = 24  # characters
ROWS = 16  # of running runs that are shown at once
FEW = 3  # runs of which, without a terminal, every tenth is told; of more, thirds
WELL = {"finished", "skipped"}


class RunsDisplay(Display):
    """A line for each run.

    Example:
        >>> with RunsDisplay({"llama-s1": 400}, console=Console(quiet=True)) as watch:
        ...     watch.update("llama-s1", {"kind": "train", "update": 40, "loss": 5.0})
        ...     watch.end("llama-s1", "finished")
        >>> watch.summary()
        '1 of 1 run finished'
    """

    def __init__(
        self,
        runs: Mapping[str, int],
        *,
        peak: int | float | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show nothing yet.

        Args:
            runs: updates by name.
            peak: FLOPs per second that MFU is a share of; none is shown where it is left out.
            console: on standard error, where it is left out.
        """
        self.pulses = {name: Throughput(updates, clock) for name, updates in runs.items()}
        self.outcomes: dict[str, str] = {}
        self.peak = peak
        self.console = console or Console(stderr=True, highlight=False)
        self._lock = threading.RLock()
        self._parts = 10 if len(self.pulses) <= FEW else 3
        self._last_parts: dict[str, int] = {}
        self._skipped = 0  # and not told of
        super().__init__(
            Live(console=self.console, get_renderable=self.render, refresh_per_second=4)
            if self.console.is_terminal
            else None
        )

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        with self._lock:
            self._tell_skipped()

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """Receive an event of a run's journal."""
        with self._lock:
            throughput = self.pulses.get(name)
            if throughput is None:
                return
            throughput.take(event)
            if not self.drawn:
                self._tell(name, throughput)

    def end(self, name: str, outcome: str = "finished") -> None:
        """End a run: "finished", "skipped", or what went wrong."""
        with self._lock:
            self.outcomes[name] = outcome
            self._skipped += outcome == "skipped"
            if outcome == "skipped":
                return
            if outcome not in WELL:
                self._print(f"{printable(name)}: {printable(outcome)}")
            elif len(self.pulses) > 1 and not self.drawn:
                self._print(f"{printable(name)}: {printable(outcome)}; {self.summary()}")

    def note(self, text: str) -> None:
        """Show a note above the lines of the runs."""
        self._print(printable(text))

    def render(self) -> RenderableType:
        """Return the lines to draw now."""
        with self._lock:
            if len(self.pulses) == 1:
                ((name, throughput),) = self.pulses.items()
                return self._single(name, throughput)
            return self._many()

    def summary(self) -> str:
        """Return how many runs have ended, and how."""
        well = sum(outcome in WELL for outcome in self.outcomes.values())
        ill = len(self.outcomes) - well
        total = len(self.pulses)
        text = f"{well} of {total} run{'s' if total > 1 else ''} finished"
        return f"{text}, {ill} diverged or failed" if ill else text

    def seconds_left(self) -> float | None:
        """Return seconds until all runs have ended, at the rate of those that go on now."""
        going = [
            throughput for name, throughput in self.pulses.items() if name not in self.outcomes
        ]
        rate = sum(throughput.rate() or 0.0 for throughput in going)
        work = sum(throughput.updates - throughput.update for throughput in going)
        return work / rate if rate else None if work else 0.0

    def _tell(self, name: str, throughput: Throughput) -> None:
        """Print a line where another part of a run is done; of many runs, where it begins too."""
        part = self._parts * throughput.update // throughput.updates
        many = self._parts < 10
        if part <= self._last_parts.get(name, -1 if many else 0):
            return
        self._last_parts[name] = part
        # Of many, the end is told by `ended`.
        if not many or part < self._parts:
            self._print(self._line(name, throughput))

    def _tell_skipped(self) -> None:
        count, self._skipped = self._skipped, 0
        if count:
            runs = f"{count} run{'s' if count > 1 else ''}"
            self._print(f"{runs} of {len(self.pulses)} finished before, kept as they are")

    def _print(self, text: str) -> None:
        self._tell_skipped()
        self.console.print(Text(text), soft_wrap=True)

    def _line(self, name: str, throughput: Throughput) -> str:
        done, updates = throughput.update, throughput.updates
        share = f"{100 * done // updates} % ({done:,} of {updates:,})"
        facts = [*self._facts(throughput), f"{duration(throughput.seconds_left())} left"]
        return f"{printable(name)}: {share}, {', '.join(facts)}"

    def _facts(self, throughput: Throughput) -> list[str]:
        """Return what is known of a run, in words."""
        facts = []
        if throughput.loss is not None:
            facts.append(f"loss {throughput.loss:.4g}")
        if throughput.bits is not None:
            facts.append(f"{throughput.bits:.4f} bits per byte")
        tokens, flops = throughput.speed("tokens"), throughput.speed("flops")
        if tokens is not None:
            facts.append(f"{tokens:,.0f} tokens/s")
        if flops is not None:
            facts.append(amount(flops, "FLOP/s"))
        if flops is not None and self.peak:
            facts.append(f"MFU {flops / self.peak:.0%}")
        return facts

    def _single(self, name: str, throughput: Throughput) -> RenderableType:
        left = throughput.seconds_left()
        cells = (
            Text(f"update {throughput.update:,} of {throughput.updates:,}"),
            Text(f"{duration(left)} left{_until(left)}"),
        )
        head = Text(printable(name), no_wrap=True, overflow="ellipsis")
        # The name gets the room that is left; where that is too little for it, a line of its own.
        room = self.console.width - sum(one.cell_len + 1 for one in cells) - BAR - 1
        line = Table.grid(padding=(0, 1))
        line.add_row(*([head] if head.cell_len <= room else []), _bar(throughput, BAR), *cells)
        above = [] if head.cell_len <= room else [head]
        return Group(*above, line, Text(", ".join(self._facts(throughput)), style="dim"))

    def _many(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("run", "", "update", "loss", "bits/byte", "tokens/s", "left"):
            table.add_column(title, justify="left" if title in {"run", ""} else "right")
        running = {
            name: throughput
            for name, throughput in self.pulses.items()
            if throughput.begun and name not in self.outcomes
        }
        for name, throughput in list(running.items())[:ROWS]:
            table.add_row(*self._row(name, throughput))
        left = self.seconds_left()
        waiting = len(self.pulses) - len(running) - len(self.outcomes)
        foot = f"{self.summary()}, {len(running)} running, {waiting} waiting; "
        foot += f"{duration(left)} left{_until(left)}"
        return Group(table, Text(foot)) if running else Text(foot)

    def _row(self, name: str, throughput: Throughput) -> list[RenderableType]:
        tokens = throughput.speed("tokens")
        return [
            Text(printable(name), overflow="ellipsis", no_wrap=True),
            _bar(throughput, 12),
            Text(f"{throughput.update:,}/{throughput.updates:,}"),
            Text("" if throughput.loss is None else f"{throughput.loss:.4g}"),
            Text("" if throughput.bits is None else f"{throughput.bits:.4f}"),
            Text("" if tokens is None else f"{tokens:,.0f}"),
            Text(duration(throughput.seconds_left())),
        ]


def _bar(throughput: Throughput, width: int) -> ProgressBar:
    return ProgressBar(total=throughput.updates, completed=throughput.update, width=width)


def _until(left: float | None) -> str:
    """Return the time of day at which it ends; with the date where that is another day."""
    if left is None or not math.isfinite(left) or left > 1e8:
        return ""
    now = datetime.now().astimezone()
    end = now + timedelta(seconds=left)
    # Half a day ahead an hour is still one hour only, also beyond midnight.
    near = end - now < timedelta(hours=12)
    return f", until {end:%H:%M}" if near else f", until {end:%d %b %H:%M}"
