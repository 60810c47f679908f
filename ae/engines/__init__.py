"""Engines: where points execute."""
