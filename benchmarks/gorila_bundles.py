"""What more bundles bring to Gorila: 1, 2 and 4 of them at equal work of each.

python benchmarks/gorila_bundles.py --seeds 0 1 2

Every bundle makes as many vec steps and as many gradients as any other, whatever their number, so k bundles make k
times the updates of the server. On free cores that takes the same time; whether it did is in `train_seconds`, beside
the load of the machine. Exploration ends after as many vec steps of each bundle. Runs lie in runs/gorila_bundles/; one
that is there already is read, not trained again.
"""

from __future__ import annotations

from dataclasses import replace

from scaling import arguments, draw, study

from fleetfoot import recipes
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.gorila.bundle import total_updates
from fleetfoot.topologies.gorila.loop import ParameterServerConfig


def main() -> None:
    parser = arguments(__doc__, "gorila-bundles", "gorila_dqn/cartpole", seeds=[0, 1, 2])
    parser.add_argument("--bundles", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--vec-steps", type=int, default=1_000, help="of each bundle")
    parser.add_argument("--evaluate-every", type=int, default=125, help="vec steps of each bundle")
    args = parser.parse_args()
    base = replace(recipes.get(args.recipe), device="cpu", threads=1)
    topology, explorer = base.topology, base.explorer
    assert isinstance(topology, ParameterServerConfig)
    assert isinstance(explorer, EpsilonAnnealConfig)
    explored = explorer.over_vec_steps // topology.bundles  # by each bundle

    def sized(bundles: int) -> Recipe:
        return replace(
            base,
            total_vec_steps=bundles * args.vec_steps,
            topology=replace(topology, bundles=bundles),
            explorer=replace(explorer, over_vec_steps=bundles * explored),
            evaluation=replace(base.evaluation, every_vec_steps=bundles * args.evaluate_every),
            checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
        )

    def facts(bundles: int, recipe: Recipe) -> dict[str, int]:
        """`updates`: of the server, if no gradient is thrown away."""
        env_steps = recipe.total_vec_steps * recipe.num_envs
        updates = total_updates(recipe, bundles)
        return {"bundles": bundles, "updates": updates, "env_steps": env_steps}

    rows = study(args, base, args.bundles, sized, facts)
    if args.picture:
        label = "vec steps of each bundle (2 gradients each)"
        draw(rows, args.picture, "bundles", label, shared=True)


if __name__ == "__main__":
    main()
