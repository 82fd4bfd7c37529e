"""One quantity, one file, on any Hugging Face causal language model."""
