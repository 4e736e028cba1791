"""Experience: the queue, the replay and recorded data that lie between actors and learner."""
