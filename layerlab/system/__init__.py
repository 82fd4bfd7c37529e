"""The machine: files, locks, threads, signals, devices."""
