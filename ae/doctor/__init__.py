"""What of this machine is fit to run."""
