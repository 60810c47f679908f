"""What a run leaves: its folder, its records, its provenance."""
