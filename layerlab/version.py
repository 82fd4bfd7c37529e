"""The version of layerlab, as results and checkpoints record it."""

VERSION = "0.1.0"
