"""The anchor: one linearizable record per bucket that says who may write to which dataset."""
