"""The `fleetfoot` command, run in the process of the test."""

from __future__ import annotations

import pytest

from fleetfoot.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run the command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What the command says to arguments it must refuse: one line, code 2, nothing on stdout."""
    code, out, err = call(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("fleetfoot: ")
    assert err.count("\n") == 1
    return err
