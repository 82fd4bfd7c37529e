"""What others wrote: Python that runs only when asked for, tokenizers tried under limits."""
