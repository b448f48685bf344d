"""What a person may write, and how they are told it is wrong; knows nothing of plans, kernels or devices."""
