"""What torch 2.11, the oldest that is supported, cannot do; nothing else is left out there."""

import pytest
import torch

NEW = torch.__version__ >= (2, 13)
needs_views = pytest.mark.skipif(not NEW, reason="this torch has no view of bits inside of vmap")
refuses_mixed = pytest.mark.skipif(not NEW, reason="this torch mixes dtypes in attention")
