"""What continued pretraining and instruction tuning share of transformers' Trainer."""
