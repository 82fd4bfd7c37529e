"""The index of a folder: what layerlab has written into it and below."""
