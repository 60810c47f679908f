"""What RAP decides before the first batch: fusion, capacity, latency, placement, schedule."""
