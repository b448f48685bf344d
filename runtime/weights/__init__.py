"""From a checkpoint on disk to the bytes that a plan lays out. Knows tensors and formats, not what they compute.

`preflight` reads headers only and needs no torch, so that a broken checkpoint is refused before anything is allocated;
`load` fills from the inventory that it returns.
"""
