"""What every room stands on: errors, files here and anywhere, second attempts, checksums, started servers, progress."""
