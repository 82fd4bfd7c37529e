"""Search for modules to keep in float32."""
