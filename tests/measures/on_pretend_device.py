"""Reads models on a fake accelerator, and says what was not read as on the processor.

`python -m tests.measures.on_pretend_device FAMILY ...`
"""

import math
import sys
from traceback import extract_tb

import layerlab
from layerlab.measures.quantities.low_precision import condition
from layerlab.numerics.emulation import weight_rows
from tests.measures.family import built
from tests.support.pretend_device import NAME, pretending

IDS = [[number * step % 61 for number in range(24)] for step in (5, 7)]
FORMATS = ["bf16", "mxfp4"]
QUESTIONS = {
    "default": {},
    "lens": {"measures": ["lens(tuned=True)"]},
    "others": {"measures": ["ablation", "features", "theorems"]},
    "weights": {"weights": True, "input_ids": None},
    "formats": {"measures": ["rounding"], "formats": FORMATS, "input_ids": [IDS[0][:12]]},
}


def differences(here, there):
    """The columns in which two reports have other numbers."""
    for name, frame in here.frames.items():
        other = there.frames.get(name)
        if other is None:
            yield f"{name} is missing"
            continue
        for column in frame.select_dtypes("number"):
            if not all(map(is_close, frame[column], other[column])):
                yield f"{name} differs in {column}"


def is_close(one, other):
    return (
        one == other
        or (math.isnan(one) and math.isnan(other))
        or abs(one - other) <= 1e-3 * abs(one) + 1e-5
    )


def read(family, question):
    """Read a family on both devices, and name what differs."""
    asked = {"input_ids": IDS, "progress": False} | QUESTIONS[question]
    here = layerlab.inspect(built(family), **asked)
    try:
        with pretending():
            there = layerlab.inspect(built(family).to(NAME), **asked)
    except Exception as error:
        own = [one for one in extract_tb(error.__traceback__) if "/layerlab/" in one.filename]
        first = (str(error).splitlines() or [""])[0][:300]
        place = f"{own[-1].filename}:{own[-1].lineno}" if own else "outside"
        return [f"{type(error).__name__} at {place}: {first}"]
    # Errors that are drawn hang on the generator, and differ from run to run.
    return [] if question == "formats" else list(differences(here, there))


def main() -> None:
    condition.WIDTH = 0  # torch.func knows no device in Python
    weight_rows.COPIED = 1000  # matrices of tiny models are as large as heads
    for family in sys.argv[1:]:
        for question in QUESTIONS:
            for fault in read(family, question):
                print(f"{family}, {question}: {fault}", flush=True)
        print(f"{family}: read")


if __name__ == "__main__":
    main()
