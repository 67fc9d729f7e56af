"""From a spec (folder, hub id, URL, GGUF file, package) to a local folder with a model; find.py is where it begins."""
