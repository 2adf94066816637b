"""Arrival times by packet: heads of received TCP packets, stamped by the kernel, and their streams."""
