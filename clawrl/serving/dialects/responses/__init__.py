"""OpenAI's responses."""

from clawrl.serving.dialects.responses.request import parse_responses_request as read
from clawrl.serving.dialects.responses.request import with_history
from clawrl.serving.dialects.responses.response import error_body as error

__all__ = ["error", "read", "with_history"]
