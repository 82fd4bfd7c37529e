"""Ideas for the feed-forward sublayer."""
