"""Measurements of fleetfoot and their results, part of the source checkout.

`speed` holds what is measured in seconds and bytes, `studies` what is measured in returns. Each is a function with
plain keyword arguments that returns a dictionary; `command` finds it by name, prints the result as tables and writes it
as JSON.
"""
