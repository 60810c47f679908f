"""DLRM training with tables spread over GPUs: the workload that preprocessing runs beside."""
