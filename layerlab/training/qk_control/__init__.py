"""Control of query and key weights."""
