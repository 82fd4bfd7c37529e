"""Studies of budzinskiy25."""
