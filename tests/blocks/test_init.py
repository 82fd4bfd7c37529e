"""Starts are values: they can be compared, copied and pickled with the model they belong to."""

import pickle

from layerlab.blocks.init import Constant


def test_a_constant_is_a_value_that_can_be_pickled():
    assert Constant(0.1) == pickle.loads(pickle.dumps(Constant(0.1)))
    assert Constant(0.1) != Constant(0.2)
