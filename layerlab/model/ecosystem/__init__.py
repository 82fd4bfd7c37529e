"""A model beside transformers': its auto classes, its code in checkpoints, torchtitan."""
