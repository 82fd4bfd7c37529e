"""Files in Parquet: what they unpack to, known before they are unpacked."""
