"""One figure, table or claim of a source per file, each with its verdict."""
