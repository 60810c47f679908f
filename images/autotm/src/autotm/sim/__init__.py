"""Simulated tiers: what a kernel takes by where its operands lie, and who decides that."""
