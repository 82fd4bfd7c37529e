"""Layer numbers as they are used everywhere: blocks from 0, and their input as EMBEDDING."""

EMBEDDING = -1


def layer_name(layer: int) -> str:
    """Return what a layer is called in a sentence.

    Example:
        >>> layer_name(EMBEDDING), layer_name(0)
        ('embedding', 'layer 0')
    """
    return "embedding" if layer == EMBEDDING else f"layer {layer}"
