"""Converts models of SentencePiece, and holds what comes out against its own reader."""
