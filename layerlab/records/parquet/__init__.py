"""Files in Parquet: runs folded into them, and what they unpack to before they are unpacked."""
