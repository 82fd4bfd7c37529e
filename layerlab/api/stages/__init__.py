"""What a command does on the way: needs the parts that train or score, and is imported late."""
