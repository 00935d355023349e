"""Who held a topic: tenures and transitions, in the store and in its audit stream."""
