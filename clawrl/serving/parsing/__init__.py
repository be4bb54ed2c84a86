"""From the text that a model writes to reasoning, text and tool calls, as it streams.

`formats` knows how a model marks them, `prompt` what of them the prompt already holds, `reader` reads one answer.
"""
