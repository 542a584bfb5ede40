"""Scaling laws of value-based learners: how much data and compute a return costs, by update-to-data ratio.

Rybkin et al. 2025, "Value-Based Deep RL Scales Predictably", arXiv 2502.04327, and Fu et al. 2025, "Compute-Optimal
Scaling for Value-Based Deep RL", arXiv 2508.14881, which adds the size of the critic. With sigma updates per env step,
batches of B, learning rate eta, N critic parameters, and D_J env steps until the score J is reached:

    (1)  eta*(sigma) = eta_1 sigma^s, B*(sigma) = B_1 sigma^t      best settings; one slope for all tasks     bests.py
    (2)  D_J(sigma) = M (c + (sigma / b)^-a)                       data until J                                laws.py
    (3)  D_J(sigma, N) = M (c + (sigma / b)^-a + (N / n)^-d)       where sizes differ                          laws.py
    (4)  C_J(sigma) = 10 sigma D_J(sigma) B*(sigma) N              FLOPs until J                           frontier.py
    (5)  sigma*_J = argmin C_J + delta D_J =: F_J                  best ratio for a budget                 frontier.py
    (6)  sigma*(F) = k F^p                                         fitted on all J but the two highest     frontier.py

`grid` says which runs there are, `fleetfoot.study` trains them, `table` reads them, `curves` finds D_J.

Deviations from the published analysis:

    [1] A crossing is interpolated between two evaluations. The published one is the later of the two.
    [2] (2) and (3) are linear in all but their exponents. A bounded search over the exponents with non-negative least
        squares inside replaces 500 local searches. So c >= 0, and data never grows with sigma.
    [3] Scores are 0 at the lowest and 1,000 at the highest return of a study where nobody states the range of a task.
    [4] A data law that does not fit (R^2 below 0.8) has no say in (6).
    [5] Of several settings at one ratio, (2) takes the one nearest to the laws (1), in the place of new runs there.
"""
