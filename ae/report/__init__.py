"""A run for people: tables and pages."""
