"""`layerlab adapt`: the command, and the stages that can be run one at a time."""
