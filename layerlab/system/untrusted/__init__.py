"""Files of strangers: Python that runs only when asked for, tokenizers under limits."""
