"""OpenAI's chat completions."""

from clawrl.serving.dialects.chat.request import read
from clawrl.serving.dialects.chat.response import error_body as error

__all__ = ["error", "read"]
