"""One decision each: a file is a pass, a pass is a verb, `pipeline.py` says the order."""
