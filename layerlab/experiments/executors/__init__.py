"""Executes runs: in processes, in slots, on Slurm."""
