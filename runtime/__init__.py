"""Executes the plan; decides nothing."""
