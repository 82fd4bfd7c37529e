"""The tokenizer.json of a folder, held against what transformers makes of it."""
