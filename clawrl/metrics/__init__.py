"""What can be seen from outside while it runs: a catalogue of metrics, one sink for them, and what follows the ledger.

Nothing here imports Ray: where readings go is passed in.
"""
