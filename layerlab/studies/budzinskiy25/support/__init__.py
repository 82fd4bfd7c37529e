"""Tools of the studies of budzinskiy25."""
