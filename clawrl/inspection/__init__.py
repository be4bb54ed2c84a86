"""What an operator is shown: documents of plain JSON, made by pure functions from what the ledger answered with.

``why``        one sentence on why a turn has not trained (yet), and one on what to do
``documents``  turns, sessions, versions and steps as rows
``life``       one turn with everything that is known of it
``asked``      the filters of a request, checked

Comes in: frozen values of the ledger and the deployment's config. Goes out: values that `json.dumps` takes without a
NaN. Nothing here keeps a state or looks at a clock.
"""
