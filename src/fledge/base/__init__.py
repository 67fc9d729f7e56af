"""Foundations of every room: errors, local and remote files, retries, checksums, child servers, progress."""
