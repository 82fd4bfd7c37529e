"""The claims of pangu23 on trained models."""
