"""The child process that owns the device: scheduler, interpreter, sampler; knows no HTTP and no text."""
