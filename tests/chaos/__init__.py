"""Random kills over a running graph under steady traffic, and an audit of what it did meanwhile.

    python -m tests.chaos --kills 200 --seed 7

`plan` says what dies in which order, `faults` finds the victims and kills them, `rig` is the graph on a cluster of
several nodes, `traffic` are its users, `watch` measures how long each recovery took. `history` reads the ledger when
all is over, and `audit` holds that against what the users noted: pure functions, tested without a graph.
"""
