"""Where the runs of a study are trained: each in a process of its own, on this machine or on a cluster."""
