"""The contract of an environment as a test."""

from fleetfoot.envs.check.check import CLAUSES, ContractError, check_env

__all__ = ["CLAUSES", "ContractError", "check_env"]
