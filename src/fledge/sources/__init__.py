"""From a spec (folder, hub id, URL, GGUF file, package) to a local folder with a model; start with find.py."""
