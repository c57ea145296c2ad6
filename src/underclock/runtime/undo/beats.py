"""What conductor and watcher say to each other, and how often.

The conductor has training to follow, the watcher has nothing else to do: so the watcher looks
often whether the conductor was stopped, and beats, which tell that neither hangs, are few. It
stands on nothing: who starts a watcher is to start it at once.
"""

READY, WATCHED, BEAT = b"ready", b"watched", b"beat"
BEAT_S = 0.25  # between beats, and between the conductor's looks whether the watcher was stopped
LOOK_S = 0.05  # between the watcher's looks whether the conductor was stopped
HUNG_S = 3.0  # without a beat: a setter takes 0.1 s at most; a busy machine may hold a process up
