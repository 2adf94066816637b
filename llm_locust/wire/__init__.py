"""Requests to an inference server and its answers, as bytes and as values. No IO, no clock, no Locust."""
