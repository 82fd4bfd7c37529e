"""Adapting a model to a domain: its vocabulary, its embeddings, its data, and the stages."""
