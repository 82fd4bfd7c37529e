"""What pytest may look into: kernels in Triton only where it is installed."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("triton") else [f"layerlab/numerics/formats/triton_{name}.py" for name in ("kernel", "blocks")]
)
