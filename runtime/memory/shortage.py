"""What can run out, as exceptions.

Shortage
├── NoPages         fewer KV pages free than wanted
├── NoSequences     as many sequences run as may
├── NoStateSlots    every state slot is in use
└── NoSnapshots     every snapshot slot is in use or being read
"""


class Shortage(Exception):
    """Root of this tree: the message has what was wanted and what there is."""


class NoPages(Shortage):
    """Fewer KV pages free than wanted."""


class NoSequences(Shortage):
    """As many sequences run as may."""


class NoStateSlots(Shortage):
    """Every state slot is in use."""


class NoSnapshots(Shortage):
    """Every snapshot slot is in use or being read: skip caching."""
