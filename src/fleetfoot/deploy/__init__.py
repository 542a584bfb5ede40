"""Run an exported policy on a robot: numpy, ONNX Runtime and the standard library, and nothing else.

from fleetfoot import deploy

policy = deploy.load("exported")
deploy.drive(my_robot, deploy.Controller(policy), seconds=60)
"""

from fleetfoot.deploy.about import About, Joint, Term
from fleetfoot.deploy.controller import Controller, Order
from fleetfoot.deploy.drive import Drive, Robot, drive
from fleetfoot.deploy.policy import Output, Policy, load

__all__ = [
    "About",
    "Controller",
    "Drive",
    "Joint",
    "Order",
    "Output",
    "Policy",
    "Robot",
    "Term",
    "drive",
    "load",
]
