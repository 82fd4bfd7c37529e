"""Operations of a model by the places where they are done."""

from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.profiles.classify import OperationIndex
from tests.measures.family import built


def test_a_factor_on_the_residual_stream_is_no_gate():
    index = OperationIndex(built("llama"))
    places = ("model.layers.0.mlp", "model.layers.0")
    assert [index.find(OpSite(one, "mul"), False) for one in places] == ["gate", "other"]
