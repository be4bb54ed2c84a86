"""What a judge cannot do."""


class JudgeError(RuntimeError):
    """The judge model cannot judge: at start for good, later for one turn."""
