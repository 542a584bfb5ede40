"""The robot in the browser: its bodies, the ground, and arrows for what is asked of it and what it does.

Bodies are children of a frame `/world`. To follow the robot that frame is moved the other way: cameras stay where their
owners put them, so that each browser may orbit as it likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.play import shapes
from fleetfoot.play.robot import Array, SimulatedRobot

COMMAND, MEASURED, ROPE = (30, 136, 229), (67, 160, 71), (229, 57, 53)
GROUND = 0.1  # m: what is lower belongs to the ground
ABOVE = 0.25  # m: how far above the robot the arrows are


class Scene:
    """Draws `robot` on a viser server. `pulled(body, point, goal)` hears of drags; goal None: let go."""

    def __init__(
        self,
        server: Any,
        robot: SimulatedRobot,
        pulled: Callable[[int, Array, Array | None], None],
    ) -> None:
        self.server, self.robot, self.follow = server, robot, True
        self.model = robot.robot.pictured()
        self.data = mujoco.MjData(self.model)
        self.frames = 0
        self._pointed: dict[str, NDArray[np.float32]] = {}
        self._pulled = pulled
        self.world = server.scene.add_frame("/world", show_axes=False)
        self._light()
        server.scene.add_grid(
            "/world/floor",
            infinite_grid=True,
            cell_size=0.5,
            section_size=2.0,
            cell_color=(205, 209, 216),
            section_color=(160, 167, 178),
            fade_distance=30.0,
            shadow_opacity=0.35,
            plane_color=(244, 246, 249),
            plane_opacity=1.0,
            position=(0.0, 0.0, shapes.lowest_plane(self.model)),
        )
        self.nodes: dict[int, Any] = {}
        for i, shape in enumerate(shapes.shapes(self.model)):
            self._add(i, shape)
        for i, shape in enumerate(shapes.fixed(self.model)):
            # Low ground would only be streaked by its own shadow.
            self._mesh(f"/world/fixed/{i}", shape, cast_shadow=shape.vertices[:, 2].max() > GROUND)
        self.arrows = {
            name: server.scene.add_arrows(
                f"/world/{name}",
                np.zeros((1, 2, 3), np.float32),
                color,
                shaft_radius=0.018,
                head_radius=0.045,
                head_length=0.09,
            )
            for name, color in (("command", COMMAND), ("measured", MEASURED), ("rope", ROPE))
        }
        tall = float(robot.built.qpos[2]) if robot.built.free else 1.0
        server.initial_camera.position = (2.4 * tall + 0.6, -2.6 * tall - 0.6, 1.5 * tall + 0.3)
        server.initial_camera.look_at = (0.0, 0.0, 0.85 * tall)
        server.initial_camera.fov = math.radians(45)
        self.update(robot.data.qpos.copy(), robot.velocity, np.zeros(3))

    def _light(self) -> None:
        scene = self.server.scene
        scene.configure_default_lights(enabled=False)
        scene.configure_environment_map(None)
        scene.set_background_image(_sky(), format="png")
        scene.add_light_hemisphere(
            "/light/sky", sky_color=(255, 255, 255), ground_color=(176, 182, 194), intensity=2.2
        )
        scene.add_light_directional(
            "/light/sun", intensity=2.6, cast_shadow=True, position=(2.0, -1.5, 5.0)
        )

    def _add(self, i: int, shape: shapes.Shape) -> None:
        if shape.body not in self.nodes:
            self.nodes[shape.body] = self.server.scene.add_frame(
                f"/world/body{shape.body}", show_axes=False
            )
        mesh = self._mesh(f"/world/body{shape.body}/{i}", shape)
        body = shape.body

        @mesh.on_drag  # type: ignore[untyped-decorator]
        async def _(event: Any) -> None:
            self._drag(body, event)

    def _mesh(self, name: str, shape: shapes.Shape, cast_shadow: Any = True) -> Any:
        if shape.colors is not None:
            from trimesh import Trimesh

            mesh = Trimesh(
                shape.vertices,
                shape.faces,
                vertex_colors=shape.colors.astype(np.uint8),
                process=False,
            )
            return self.server.scene.add_mesh_trimesh(
                name, mesh, cast_shadow=bool(cast_shadow), receive_shadow=0.5
            )
        return self.server.scene.add_mesh_simple(
            name,
            shape.vertices.astype(np.float32),
            shape.faces.astype(np.uint32),
            color=shape.color,
            flat_shading=not shape.smooth,
            cast_shadow=bool(cast_shadow),
        )

    def _drag(self, body: int, event: Any) -> None:
        """A body is held by the mouse. The robot's own bodies have the numbers and frames of those that are drawn."""
        offset = np.asarray(self.world.position)
        if event.phase == "end":
            self._pulled(body, np.zeros(3), None)
            return
        here, goal = (np.asarray(p) - offset for p in (event.start_position, event.end_position))
        turned = self.data.xmat[body].reshape(3, 3)
        own = self.robot.body_named(self.model.body(body).name)
        self._pulled(own, turned.T @ (here - self.data.xpos[body]), goal)

    def update(self, qpos: Array, command: Array, measured: Array) -> None:
        """Draw this moment."""
        if not np.isfinite(qpos).all():
            return
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        base = self.data.xpos[1]
        with self.server.atomic():
            if self.follow:
                self.world.position = (-base[0], -base[1], 0.0)
            for body, node in self.nodes.items():
                node.position = self.data.xpos[body]
                node.wxyz = self.data.xquat[body]
            self._point(base, command, measured)
        self.frames += 1

    def _point(self, base: Array, command: Array, measured: Array) -> None:
        heading = self.robot.heading()
        cos, sin = math.cos(heading), math.sin(heading)
        top = np.array([base[0], base[1], float(self.data.xpos[1:, 2].max()) + ABOVE])
        for name, wanted, lift in (("command", command, 0.0), ("measured", measured, 0.07)):
            x, y = (float(v) for v in wanted[:2]) if len(wanted) >= 2 else (0.0, 0.0)
            arrow = self.arrows[name]
            arrow.visible = math.hypot(x, y) > 0.05
            if not arrow.visible:
                continue
            arrow.position = top + np.array([0.0, 0.0, lift])
            way = np.array([cos * x - sin * y, sin * x + cos * y, 0.0])
            points = np.array([[np.zeros(3), 0.8 * way]], np.float32)
            if np.abs(points - self._pointed.get(name, 1e9)).max() > 0.01:  # a new shape costs
                arrow.points = self._pointed[name] = points
        rope, pull = self.arrows["rope"], self.robot.pull
        rope.visible = pull is not None
        if pull is not None:
            body, point, goal = pull
            data = self.robot.data
            here = data.xpos[body] + data.xmat[body].reshape(3, 3) @ point
            rope.points = np.array([[here, goal]], np.float32)


def _sky() -> NDArray[np.uint8]:
    """From blue down to the colour of the ground."""
    down = np.linspace(0.0, 1.0, 64)[:, None, None]
    top, ground = np.array([178.0, 203.0, 228.0]), np.array([244.0, 246.0, 249.0])
    rows = top + (ground - top) * np.minimum(1.0, 2.2 * down)
    return np.broadcast_to(rows, (64, 64, 3)).astype(np.uint8)
