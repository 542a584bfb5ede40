"""The actor-scaling study of Ape-X in small: 1, 2, 4, 8 actors at equal learner updates.

python benchmarks/apex_actors.py --seeds 0 1 2

Each actor has as many environments as any other and the pace counts vec steps, so all runs make the same updates at the
same batch size; more actors only means more, and more different, rows to learn from. Runs lie in runs/apex_actors/; one
that is there already is read, not trained again.
"""

from __future__ import annotations

from dataclasses import replace

from scaling import arguments, draw, study

from fleetfoot import recipes
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.apex.loop import ActorLearnerConfig


def main() -> None:
    parser = arguments(__doc__, "apex-actors", "apex_dqn/cartpole", seeds=[0, 1, 2])
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--envs-per-actor", type=int, default=4)
    parser.add_argument("--vec-steps", type=int, default=1_500)
    args = parser.parse_args()
    base = replace(recipes.get(args.recipe), device="cpu", threads=1)
    topology = base.topology
    assert isinstance(topology, ActorLearnerConfig)

    def sized(actors: int) -> Recipe:
        return replace(
            base,
            num_envs=actors * args.envs_per_actor,
            total_vec_steps=args.vec_steps,
            topology=replace(topology, actors=actors),
        )

    def facts(actors: int, recipe: Recipe) -> dict[str, int]:
        updates = recipe.pace.updates_after(recipe.total_vec_steps)
        env_steps = recipe.total_vec_steps * recipe.num_envs
        return {"actors": actors, "updates": updates, "env_steps": env_steps}

    rows = study(args, base, args.actors, sized, facts)
    if args.picture:
        label = "vec steps (4 updates each, whatever the number of actors)"
        draw(rows, args.picture, "actors", label)


if __name__ == "__main__":
    main()
