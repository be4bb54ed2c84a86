"""How a response will be drawn, and what of the Responses API is refused because nothing here can honour it.

The values that both of OpenAI's dialects know are read as in chat; the length is ``max_output_tokens`` here.
"""

from __future__ import annotations

from clawrl.messages import SamplingParams
from clawrl.serving.config import SamplingDefaults
from clawrl.serving.dialects.sampling import parse_sampling as parse_chat_sampling
from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_text, flag, integer, wrong_type

_AS_IN_CHAT = (
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "repetition_penalty",
    "logit_bias",
)
_LOGPROBS = "message.output_text.logprobs"


def parse_sampling(body: JsonObject, defaults: SamplingDefaults, *, impose: bool) -> tuple[SamplingParams, list[str]]:
    """The resolved parameters and the names of the client's values that the operator overrode."""
    _refuse_what_cannot_be_honoured(body)
    drawn = {name: body.get(name) for name in _AS_IN_CHAT}
    longest = integer(body, "max_output_tokens", low=1)
    return parse_chat_sampling(drawn | {"max_tokens": longest}, defaults, impose=impose)


def _refuse_what_cannot_be_honoured(body: JsonObject) -> None:
    _refuse_logprobs(body)
    if flag(body, "background"):
        raise unsupported("background", "'background' is not supported.", "Leave it out and stream the response.")
    if body.get("conversation") is not None:
        raise unsupported("conversation", "'conversation' is not supported.", "Use 'previous_response_id'.")
    if body.get("prompt") is not None:
        raise unsupported("prompt", "'prompt' is not supported: no prompts are stored here.", "Send it in 'input'.")
    truncation = body.get("truncation")
    if truncation == "auto":
        raise unsupported("truncation", "'truncation' is not supported: a prompt is never cut.", "Shorten the input.")
    if truncation not in (None, "disabled"):
        raise invalid_request(
            f"Invalid value for 'truncation': {quoted(truncation)}. It must be 'disabled'.", "truncation"
        )


def _refuse_logprobs(body: JsonObject) -> None:
    """What else may be included is of tools and stores that are not here: there is nothing to include."""
    remedy = "Use chat completions with 'logprobs': true for the sampled tokens."
    include = body.get("include")
    if include is not None and not isinstance(include, list):
        raise wrong_type(include, "include", "an array of strings")
    if _LOGPROBS in [as_text(name, f"include[{i}]") for i, name in enumerate(include or [])]:
        raise unsupported("include", f"'include' of {quoted(_LOGPROBS)} is not supported.", remedy)
    if integer(body, "top_logprobs", low=0):
        raise unsupported("top_logprobs", "'top_logprobs' is not supported.", remedy)
