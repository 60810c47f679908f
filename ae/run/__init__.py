"""From a plan to records: points one after another."""
