"""Upper bounds of a model on GPUs: bytes over bandwidth, operations over peak. Pure functions."""
