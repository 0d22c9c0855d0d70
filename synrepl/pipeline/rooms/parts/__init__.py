"""Parts of rooms: where rooms are cut, and how the events of a part are judged in a task."""
