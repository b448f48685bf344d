"""`ft bench`: measures an engine alone and through HTTP, beside the plan's own estimate; knows no torch."""
