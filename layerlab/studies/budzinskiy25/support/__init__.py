"""What studies of budzinskiy25 need."""
