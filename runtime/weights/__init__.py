"""Checkpoint files to the plan's places; trusts only headers."""
