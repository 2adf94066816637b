"""Bytes in, values out: what an inference server says. No IO, no clock, no Locust."""
