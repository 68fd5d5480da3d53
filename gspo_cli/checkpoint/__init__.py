"""Checkpoints: folders that are whole or absent, hold all that an exact continuation needs, and prove it on load."""
