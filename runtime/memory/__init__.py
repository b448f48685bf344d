"""Pages, state slots, expert slots, snapshots and the prefix cache; most of it without torch."""
