"""Shipped profiles: facts as YAML, and the embedded model."""
