"""The dashboard's files."""
