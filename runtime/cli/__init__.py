"""The command line: data to stdout, everything else to stderr."""
