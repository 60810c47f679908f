"""The engine `slurm`: points are batch jobs of a cluster."""
