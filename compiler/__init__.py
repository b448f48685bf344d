"""Turns a profile and facts into one plan; knows no device, no clock, no network and no torch."""
