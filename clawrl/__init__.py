"""clawrl serves an agent's language model behind an OpenAI-compatible endpoint and keeps training it."""

__version__ = "0.1.0"
