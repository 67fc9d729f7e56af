"""Serving with other engines and in the cloud: SGLang, vLLM, Vertex AI."""
