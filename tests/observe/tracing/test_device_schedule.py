"""Threads of the host, which are given back as they were found."""

import pytest
import torch

from layerlab.observe.tracing.device_schedule import one_thread


def test_one_thread_is_for_the_length_of_a_context_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
