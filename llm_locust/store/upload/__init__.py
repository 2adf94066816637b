"""Copies of run directories in an object store or another file system."""
