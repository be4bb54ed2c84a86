"""The console: a web page from which a deployment is talked to, looked at and operated.

``files``  the page's files as HTTP answers

The page itself is in ``static/``: plain ES modules, one style sheet and a vendored chart library, served as they are.
It holds nothing secret, so that everybody may fetch it; what it shows comes from the operator's routes, with the key
that a person types in.
"""
