"""A policy at work in a browser: a robot in plain MuJoCo under its exported file (`fleetfoot play`, `watch`)."""

from fleetfoot.play.run import play, watch

__all__ = ["play", "watch"]
