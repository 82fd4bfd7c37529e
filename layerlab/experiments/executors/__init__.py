"""Where runs are carried out: processes, slots, Slurm."""
