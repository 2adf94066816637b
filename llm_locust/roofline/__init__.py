"""What GPUs allow a model: bytes over bandwidth, operations over peak. Pure functions on small values."""
