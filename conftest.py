"""What pytest looks into: kernels in Triton only where it is installed."""

from importlib.util import find_spec

KERNELS = [
    "layerlab/measures/support/flash_products.py",
    "layerlab/numerics/formats/triton_*.py",
    "tests/measures/support/compile_flash.py",
    "tests/numerics/formats/compile_triton.py",
]
collect_ignore_glob = [] if find_spec("triton") else KERNELS
