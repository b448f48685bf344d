"""What can run out, as exceptions.

Shortage
├── NoPages         fewer KV pages free than wanted
├── NoStateSlots    every state slot is in use
└── NoSnapshots     every snapshot slot is in use or being read
"""


class Shortage(Exception):
    """Root of this tree: the message has what was wanted and what there is."""


class NoPages(Shortage):
    """Fewer KV pages free than wanted."""


class NoStateSlots(Shortage):
    """Every state slot is in use."""


class NoSnapshots(Shortage):
    """Every snapshot slot is in use or being read: skip caching."""
