"""``synrepl demo --rooms``: a large room of one server is joined by another one, which is killed while it completes the room.

In reading order: ``servers`` (the processes and their configurations), ``members`` (the events of a large room),
``clients`` (what users do), ``scenario`` (what happens when), ``comparison`` (of the servers), ``report`` (the result).
"""
