"""Real clients against a real server, each in an environment of its own: `make test-clients`.

__main__.py      starts the servers, runs the clients, prints the table
environment.py   what a client needs, from the head of its script, and the environment made from it
trial.py, .mjs   what the scripts are written with
with_*.py, .mjs  a client each
"""
