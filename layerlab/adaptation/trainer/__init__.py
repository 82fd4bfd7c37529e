"""The Trainer of transformers, as pretraining and instruction tuning extend it."""
