"""Anthropic's messages: ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from clawrl.serving.dialects.messages.errors import error_body as error
from clawrl.serving.dialects.messages.request import parse_count_request as read_count
from clawrl.serving.dialects.messages.request import parse_messages_request as read

__all__ = ["error", "read", "read_count"]
