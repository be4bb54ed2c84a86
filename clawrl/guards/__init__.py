"""What keeps learning from going wrong: filters on single turns, alarms on the recent answers as a whole.

Everything here is plain data in, plain data out. Who drops a turn or pauses submission acts on what is said here.
"""
