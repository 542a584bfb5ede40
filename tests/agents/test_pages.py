"""The pages of the algorithms: the lines of source that they show are in the source, and they know every field."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from fleetfoot.agents.brc import BRCConfig
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.daa import DAAConfig
from fleetfoot.agents.dac import DACConfig
from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.flash_sac import FlashSACConfig
from fleetfoot.agents.mac import MACConfig
from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.agents.sac import SACConfig
from fleetfoot.agents.vpl import VPLConfig
from fleetfoot.agents.wmpg import WMPGConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shown_lines_are_in_the_source(page: Path) -> None:
    files = (ROOT / "src" / "fleetfoot").rglob("*.py")
    known = {line.strip() for file in files for line in file.read_text().splitlines()}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    shown = {line.strip() for block in blocks for line in block.splitlines()} - {"", "..."}
    assert shown <= known, sorted(shown - known)


@pytest.mark.parametrize(
    "cfg",
    [
        *(BRCConfig, BROConfig, DAAConfig, DACConfig, DDPGConfig, DQNConfig, FastSACConfig),
        *(FastTD3Config, FlashSACConfig, MACConfig, PPOConfig, SACConfig, VPLConfig, WMPGConfig),
    ],
)
def test_every_field_of_an_agent_is_in_a_table_of_its_page(cfg: Any) -> None:
    name = cfg.__module__.rpartition(".")[2]
    text = (PAGES[0].parent / f"{'wmpg' if name == 'mac' else name}.md").read_text()
    table = text.partition("\n## Every field\n")[2].partition("\n## ")[0]
    of_wmpg, _, of_mac = table.partition("`MACConfig`")
    table = of_mac if name == "mac" else of_wmpg
    firsts = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    fields = {field.name for field in dataclasses.fields(cfg)}
    assert fields <= set(re.findall(r"`(\w+)`", firsts))


def test_there_is_something_to_compare() -> None:
    assert sum("```python" in page.read_text() for page in PAGES) >= 4
