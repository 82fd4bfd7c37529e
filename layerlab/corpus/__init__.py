"""From documents to blocks of tokens on disk, and to batches."""
