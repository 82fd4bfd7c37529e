"""A reading makes an accelerator wait as often for many layers as for few.

A processor stands in for it: work is cut as for one, and what would wait is counted.
"""

from typing import Any

import pytest

from layerlab import Monitor
from layerlab.observe.tracing import device_schedule
from tests.support.host_reads import Counts, counted
from tests.training.support.watched import batch, loss_of, values

# Iterations of all heads side by side, whatever their number; and for each layer its two products
# of weights and views of them. Before, 84 and 2,025; and 9 reads with 23 for each layer.
OPERATIONS, OPERATIONS_OF_LAYER, READS = 2700, 50, 4


def count_reading(model: Any, sequences: int) -> Counts:
    """Count a reading after the first, which also checks that attention is plain."""
    monitor = Monitor(model, every=1, sequences=sequences)
    for update in range(2):
        loss_of(model, batch(update)).backward()
        with counted() as counts:
            monitor.step()
    heads = model.config.num_hidden_layers * model.config.num_attention_heads
    assert not monitor.notes and len(values(monitor, "score", 1)) == heads
    return counts


@pytest.mark.full
@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_reading_waits_as_often_for_many_layers_as_for_few(
    tiny, monkeypatch, implementation, sequences
):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    few, many = (
        count_reading(
            tiny("llama", num_hidden_layers=layers, attn_implementation=implementation).train(),
            sequences,
        )
        for layers in (2, 8)
    )
    assert sum(many.reads.values()) == sum(few.reads.values()) <= READS
    assert sum(many.copies.values()) == sum(few.copies.values())
    begun, all_done = (sum(one.operations.values()) for one in (few, many))
    assert all_done - begun <= 6 * OPERATIONS_OF_LAYER
    assert begun <= OPERATIONS
