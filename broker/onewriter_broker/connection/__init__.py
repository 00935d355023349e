"""One client connection: its socket, its session, its producers and consumers, its look-ups."""
