"""PQL: an actor, a critic learner and a policy learner at the same time, as threads or as Ray actors."""
