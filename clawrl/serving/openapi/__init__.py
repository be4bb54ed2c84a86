"""The HTTP API as an OpenAPI 3.1 document.

A request's schema says what its parser accepts and no more: every rule in it is one that breaking is a 4xx for, fields
that it does not name are ignored, and null is the same as leaving a field out wherever null is allowed. What a schema
cannot say (that a chosen tool is among the tools) stands in the descriptions.
"""

from clawrl.serving.openapi.document import description

__all__ = ["description"]
