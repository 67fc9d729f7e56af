"""The command line, a file per group of commands: it parses, calls and prints. main.py is where it begins."""
