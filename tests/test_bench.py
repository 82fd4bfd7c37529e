"""What benches say of their own measurements."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench as a module: it takes its own folder off the path, and puts another there."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return lambda name: runpy.run_path(str(BENCH / f"{name}.py"))


def test_runs_are_timed_while_both_are_at_work(bench: Any) -> None:
    """Alone a run makes 200 tokens a second, beside the other 100: before 4 s and after 10 s."""
    early = [
        (float(second), 200.0 * second if second < 4 else 400.0 + 100 * second)
        for second in range(11)
    ]
    late = [(second + 4.5, 100.0 * second) for second in range(6)]
    late += [(9.5 + second, 500.0 + 200 * second) for second in range(1, 5)]
    together = bench("runner")["together"]
    assert together([early, late]) == [100.0, 100.0]
    assert together([late, early]) == [100.0, 100.0]
    assert together([[(0.0, 0.0), (1.0, 50.0), (2.0, 300.0)]]) == [150.0]
    with pytest.raises(SystemExit, match="not at work at the same time"):
        together([early, [(20.0, 0.0), (21.0, 100.0)]])


@pytest.mark.parametrize("alive", [True, False])
def test_fewer_kills_than_asked_for_are_a_failure(
    alive: bool, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may be over before the last of them."""
    main = bench("resume")["main"]
    fake = {
        "killed": lambda *_: alive,
        "report": lambda *_: None,
        "subprocess": type("Nothing", (), {"run": lambda *_, **__: None, "DEVNULL": None}),
    }
    for name, value in fake.items():
        monkeypatch.setitem(main.__globals__, name, value)
    monkeypatch.setattr(sys, "argv", ["resume.py", "--kills", "3"])
    if alive:
        main()
        return
    with pytest.raises(SystemExit, match="0 of 3 kills; type another --seed"):
        main()
