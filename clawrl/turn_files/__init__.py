"""Files of turns and of conversations: turns exported, sealed exports opened, conversations read and replayed.

``rows`` is what such a file is, line by line, and knows nothing of servers; ``export`` and ``sealed`` make rows,
``conversations`` makes conversations of rows, and ``replay`` plays them. What cannot be done is a
`clawrl.turn_files.rows.TurnFileError`, whose text is one line that says what to do.
"""
