"""Does your own code keep its side of the bargain? Checks for methods, losses, rewards, hint sources and filters.

``run_contract(kind, path)`` loads what ``path`` names, runs it on small made-up turns and batches, and reports row by
row what was promised, whether it was kept and, if not, what happened instead. Nothing is served or trained, no model is
loaded. The built-in methods pass the same checks.
"""

from clawrl.contracts.report import CheckRow, ContractReport
from clawrl.contracts.run import KINDS, run_contract

__all__ = ["KINDS", "CheckRow", "ContractReport", "run_contract"]
