"""Rounding on a GPU: kernels in Triton, bit for bit as the others round."""
