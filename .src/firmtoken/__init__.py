"""FirmToken: a profile is compiled into a fixed plan, and the plan is executed."""

__version__ = "0.1.0"
