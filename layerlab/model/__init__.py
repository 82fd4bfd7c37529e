"""The Hugging Face face of a stack of blocks."""
