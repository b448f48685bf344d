"""The exit codes of every process here (D10)."""

DONE = 0
"""Also a drained SIGINT or SIGTERM."""
FAILED = 1
"""Failed while running: busy port, broken or missing checkpoint, download, disk."""
WRONG = 2
"""The profile or the command line is wrong."""
REFUSED = 3
"""Does not fit, or this machine lacks what the plan needs."""
ENGINE_DIED = 4
"""The engine died, and its restarts are used up."""
INTERRUPTED = 130
"""By SIGINT before ready, or by the second one."""
TERMINATED = 143
"""Likewise, by SIGTERM."""
