"""fledge makes an LLM you already serve answer faster, with the same output (EAGLE-3 draft heads)."""

__version__ = "0.1.0"
