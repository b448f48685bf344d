"""HTTP in, HTTP out; no policy and no torch."""
