"""`clawrl check`: what is wrong with deployment files, found before anything starts.

`file` looks at one file, `interpreters` at the Pythons that it names, `clashes` at several files together, `machine` at
what runs here already; `clusters` has the words for a second cluster.
"""

from clawrl.check.file import CheckReport, check_file, render_placement

__all__ = ["CheckReport", "check_file", "render_placement"]
