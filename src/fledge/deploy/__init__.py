"""Serving with other engines and on other people's machines: SGLang, vLLM, Vertex AI."""
