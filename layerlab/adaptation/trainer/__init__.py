"""What both kinds of training share of transformers' Trainer."""
