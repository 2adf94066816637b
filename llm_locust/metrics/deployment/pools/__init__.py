"""Separate prefill and decode: which server does what, and the figures of each role."""
